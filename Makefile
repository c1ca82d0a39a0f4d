.venv/.stamp: pyproject.toml infra/scripts/setup
	@infra/scripts/setup .venv

setup: .venv/.stamp
.venv: .venv/.stamp
.PHONY: setup .venv
