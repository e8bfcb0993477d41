"""Load drafters with the real SGLang and write down what happened. Runs inside an environment that has SGLang.

    python sglang_loads.py JOBS.json OUT.json

JOBS is ``{"target": DIR, "drafters": [{"id": ..., "path": DIR, "method": "EAGLE" or "EAGLE3"}, ...]}``. Every drafter
is loaded in a process of its own. SGLang's own code makes the server arguments, reads the config, finds the class,
builds it, walks the files, loads, shares tables with the target, and tells the target which states to capture. Ours
are: the stand-ins for modules that need a GPU (``STAND_INS``, ``ROTARY_KERNEL``) and for the rotary embedding of CPUs
(`plain_rotary`), attention and MLP that only count, and the bookkeeping.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import tempfile
import textwrap
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo
import torch._inductor.runtime.triton_heuristics  # it looks at triton when it is first imported

from children import observe_all
from placeholders import stand_in_for
from recorder import Recorder

STAND_INS = ("triton", "torchvision", "tvm_ffi", "sgl_kernel", "xgrammar")
# On a CPU without AMX the rotary embedding asks for vLLM's kernel, which loading never calls.
ROTARY_KERNEL = "vllm"


def plain_rotary() -> None:
    """Where latent attention has no scaling, the function for CPUs fails, and only that one: take the one for GPUs."""
    from sglang.srt.layers import rotary_embedding

    module = importlib.import_module(rotary_embedding.get_rope_wrapper.__module__)
    for_cpu, scaling = module.get_rope_cpu, 5
    module.get_rope_cpu = lambda *args: for_cpu(*args) if args[scaling] else module.get_rope(*args[:-1])


def prepare() -> None:
    """Import the engine and set up one process that is the whole world."""
    stand_in_for(*STAND_INS)
    # "No device", which an attribute of a stand-in would not say.
    importlib.import_module("triton.runtime").driver = object()  # type: ignore[attr-defined]
    # Older releases call these after sharing.
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *args: None
    torch.set_num_threads(1)


def server_args(target: str, algorithm: str, drafter: str) -> Any:
    """SGLang's own arguments, as for its command line."""
    from sglang.srt import server_args as module

    args = module.ServerArgs(
        model_path=target,
        speculative_algorithm=algorithm,
        speculative_draft_model_path=drafter,
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=4,
        device="cpu",
    )
    try:
        from sglang.srt.runtime_context import SpawnRanks, publish

        publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0))
    except ImportError:  # before there was a context to publish to
        module.set_global_server_args_for_scheduler(args)
    return args


def one_process(args: Any, model_config: Any) -> None:
    """The groups of a world of one."""
    from sglang.srt import distributed
    from sglang.srt.layers import dp_attention

    meeting = Path(tempfile.mkdtemp()) / "meeting"  # a file instead of a port, which another process may have
    distributed.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{meeting}"
    )
    distributed.initialize_model_parallel(backend="gloo")
    given = {"server_args": args, "model_config": model_config}
    wanted = inspect.signature(dp_attention.initialize_dp_attention).parameters
    dp_attention.initialize_dp_attention(**{name: given[name] for name in wanted})


def load(model_config: Any, watch: bool) -> tuple[Any, dict[str, Any]]:
    """Build and load by the engine's own loader; with `watch`, see what it writes."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import get_model, loader

    seen: dict[str, Any] = {}
    real = loader._initialize_model

    def build(*args: Any, **options: Any) -> Any:
        model = real(*args, **options)
        if watch:
            load_weights = model.load_weights

            def observed(weights: Any, *more: Any, **options: Any) -> Any:
                with Recorder(model) as recorder:
                    try:
                        return load_weights(recorder.watch(weights), *more, **options)
                    finally:
                        seen.update(recorder.result())

            model.load_weights = observed
        return model

    loader._initialize_model = build
    try:
        return get_model(
            model_config=model_config, load_config=LoadConfig(), device_config=DeviceConfig("cpu")
        ), seen
    finally:
        loader._initialize_model = real


def block(where: Any, holds: str, pick: Any = max) -> ast.stmt | None:
    """The outermost (with ``min`` the innermost) `if` of a class that holds a piece of text; None without one."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(where)))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.If) and holds in ast.unparse(n)]
    return pick(found, key=lambda n: len(ast.unparse(n)), default=None)


def run_block(statement: ast.stmt | None, names: dict[str, Any]) -> None:
    """Run one statement of the engine's source, if the release has it."""
    if statement is None:
        return
    exec(compile(ast.Module([statement], []), "engine", "exec"), names)


def share(target: Any, drafter: Any, algorithm: Any, config: Any) -> None:
    """What the worker does after both are loaded."""
    try:
        from sglang.srt.speculative import eagle_worker as module

        worker = module.EAGLEWorker
    except ImportError:
        from sglang.srt.speculative import eagle_worker_v2 as module

        worker = module.EagleDraftWorker
    runner = SimpleNamespace(model=drafter, model_config=config)
    self = SimpleNamespace(
        speculative_algorithm=algorithm, draft_model_runner=runner, draft_runner=runner, hot_token_id=None
    )
    embed, head = target.get_embed_and_head()
    names = {
        **vars(module),
        "self": self,
        "embed": embed,
        "head": head,
        "maybe_share_target_lm_head": lambda: None,
    }
    run_block(block(worker, "load_lm_head_from_target"), names)
    run_block(block(worker, "eagle_config.get", pick=min), names)


def wanted(args: Any, target_config: Any, target: Any, algorithm: Any) -> bool:
    """Tell the target which states to hand over, as the runner does; false when it is told nothing."""
    try:
        from sglang.srt.model_executor.model_runner_components import spec_aux_hidden_state as module

        found = module.resolve_spec_aux_hidden_state_config(
            server_args=args, model_config=target_config, spec_algorithm=algorithm, is_draft_worker=False
        )
    except ImportError:
        from sglang.srt.model_executor import model_runner

        found = object.__new__(model_runner.ModelRunner)  # its methods, without its set-up
        vars(found).update(spec_algorithm=algorithm, is_draft_worker=False, server_args=args)
        found.eagle_use_aux_hidden_state = False
        statement = block(model_runner.ModelRunner, "eagle_config['eagle_aux_hidden_state_layer_ids']")
        run_block(statement, {**vars(model_runner), "self": found, "server_args": args})
    if found.eagle_use_aux_hidden_state:
        target.set_eagle3_layers_to_capture(found.eagle_aux_hidden_state_layer_ids)
    return bool(found.eagle_use_aux_hidden_state)


def adds(number: float) -> Any:
    """A forward pass for attention or MLP: whatever comes in, a fixed number goes out."""

    def forward(*args: Any, **options: Any) -> torch.Tensor:
        floats = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
        return torch.full_like(options.get("hidden_states", floats[-1] if floats else None), number)

    return forward


def passed(body: Any) -> tuple[Any, int]:
    """Run the real loop over layers that add 1 each, and give what comes out, and the width of a state.

    Layers, norms and everything between them are the engine's.
    """
    for layer in body.layers:
        layer.self_attn.forward, layer.mlp.forward = adds(0.0), adds(1.0)
    width = body.embed_tokens.weight.shape[1]
    start = torch.zeros(1, width, dtype=body.embed_tokens.weight.dtype)
    zero = torch.zeros(1, dtype=torch.long)
    with torch.no_grad():
        return body(zero, zero, OneToken(zero, start), start), width


def states(body: Any) -> list[int]:
    """What is captured says how many layers were applied before. The embedding's output, zeros here, is state 0."""
    out, width = passed(body)
    if isinstance(out, torch.Tensor):
        return []  # it captures nothing
    handed = out[1].split(width, dim=-1) if isinstance(out[1], torch.Tensor) else out[1]
    return [round(float(state.flatten()[0])) for state in handed]


class OneToken:
    """A batch of one token, as far as the loop over layers looks at it: decoding, and nothing special."""

    def __init__(self, ids: torch.Tensor, state: torch.Tensor) -> None:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        self.forward_mode, self.input_ids = ForwardMode.DECODE, ids
        self.spec_info = SimpleNamespace(hidden_states=state)

    def __getattr__(self, name: str) -> Any:
        return None


def observe(job: dict[str, Any], drafter: dict[str, str], out: dict[str, Any]) -> None:
    """All about one drafter. `out` holds what was seen so far when something raises."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    out["stage"] = "arguments"
    args = server_args(drafter.get("target", job["target"]), drafter["method"], drafter["path"])
    algorithm = SpeculativeAlgorithm.from_string(drafter["method"])
    target_config = ModelConfig.from_server_args(args)
    one_process(args, target_config)
    target, _ = load(target_config, watch=False)
    out["stage"] = "config"
    config = ModelConfig.from_server_args(args, model_path=drafter["path"], is_draft_model=True)
    out["dtype"] = str(config.dtype).removeprefix("torch.")
    out["stage"] = "load"
    seen: dict[str, Any] = {}
    try:
        model, seen = load(config, watch=True)
    finally:
        out.update(seen)
    out["class"] = type(model).__name__
    out["stage"] = "share"
    share(target, model, algorithm, config)
    owned = {p.data_ptr() for p in target.parameters()}
    out["shared"] = sorted(
        n for n, p in model.named_parameters(remove_duplicate=False) if p.data_ptr() in owned
    )
    out["stage"] = "capture"
    try:
        if not algorithm.is_eagle3():
            if (
                config.dtype == target_config.dtype
            ):  # with another one the first forward pass fails, whatever the file
                passed(model.model)
        elif wanted(args, target_config, target, algorithm):
            out["captured"] = states(target.model)
        else:
            out["captured"] = None
    except Exception as error:
        if os.environ.get("OBSERVE_TRACE"):
            traceback.print_exc()
        out["forward_error"] = f"{type(error).__name__}: {error}"
    out["stage"] = "done"


def main() -> None:
    """Import once, before any child, and observe."""
    prepare()
    import sglang
    from sglang.srt.model_loader import loader  # noqa: F401
    from sglang.srt.models import (  # noqa: F401
        deepseek_v2, llama, llama_eagle, llama_eagle3, mistral_large_3_eagle, qwen2_eagle, registry,
    )  # fmt: skip

    stand_in_for(
        ROTARY_KERNEL
    )  # only now: what was imported before looks whether it is there, and does more if so
    plain_rotary()
    observe_all(observe, sglang.__version__)


if __name__ == "__main__":
    main()
