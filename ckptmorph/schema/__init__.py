"""The schema language: YAML files to frozen values, templates, expressions and the registry that finds them."""
