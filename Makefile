# Everything starts from a clone and a system Python: each target makes .venv first when it is missing or stale.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
BIN := .venv/bin
TRAIN := .venv-train/bin/python
ARGS ?=
OVERLAY ?= dev
REGISTRY ?=
TAG ?=
PORT ?= 8765
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 2 ? 2 : n > 3 ? 6 : 2 * n)))
HOLDFAST_DATA ?= .holdfast
export PORT HOLDFAST_DATA REGISTRY TAG
# Hundreds of processes start from this tree: without its bytecode, compiling it would be half of the work of a run.
export PYTHONDONTWRITEBYTECODE :=
SOURCES := $(wildcard schemas sdk_py session_agent gateway loadtest infra tests)

.PHONY: docs help setup up demo test test-user test-lowest test-all soak test-cluster test-docker test-facade test-page check format generate wheels release bundle images deploy cluster smoke acceptance bench curves copies peers load chaos fuzz integrations recipes recipes-programs recipes-learn clean

help: ## Show what there is
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: .venv/.stamp ## Make .venv, by the newest Python here or PYTHON (every other target does this by itself)

.venv/.stamp: pyproject.toml infra/scripts/setup infra/page/package-lock.json
	@infra/scripts/setup .venv

up: .venv/.stamp ## Run Redis, node, controller and gateway in the foreground (PORT, HOLDFAST_DATA)
	@exec $(BIN)/holdfast up --with-parent $(ARGS)

demo: .venv/.stamp ## One long agent episode in a sandbox (ARGS=--live: a real model drives)
	@exec $(PY) -m infra.demo $(ARGS)

test: .venv/.stamp ## The quick tests, minutes (ARGS="-k shell"; WORKERS: twice the cores, 2 to 6)
	@exec $(PY) -m pytest -n $(WORKERS) -m "not (slow or soak or chaos or cluster or docker)" $(ARGS)

test-user: ## As root: make test as an ordinary user created for it, in a clone with Debian's own Python (PYTHON, ARGS)
	@exec infra/scripts/as_user make --no-print-directory test WORKERS=$(WORKERS) ARGS="$(ARGS)"

test-lowest: .venv-lowest/.stamp ## The quick tests with the lowest version of every dependency and the oldest Python of this machine
	@exec .venv-lowest/bin/python -m pytest -n $(WORKERS) -m "not (slow or soak or chaos or cluster or docker)" $(ARGS)

.venv-lowest/.stamp: pyproject.toml infra/scripts/setup infra/scripts/lowest.py | .venv/.stamp
	@mkdir -p build && $(PY) -m infra.scripts.lowest pyproject.toml > build/lowest.txt
	@PYTHON=$$(infra/scripts/pythons --oldest) PIP_CONSTRAINT=build/lowest.txt infra/scripts/setup .venv-lowest

test-all: .venv/.stamp ## Every test but the longest
	@exec $(PY) -m pytest -n $(WORKERS) $(ARGS)

soak: .venv/.stamp ## The longest: a thousand sandboxes, a thousand pods, readers that stall
	@exec $(PY) -m pytest -m soak --timeout 900 $(ARGS)

test-cluster: .venv/.stamp ## What needs a cluster, on the one KUBECONFIG names (HOLDFAST_BUNDLE_IMAGE, HOLDFAST_TEST_IMAGE)
	@CI=true exec $(PY) -m pytest tests/kubernetes -m cluster -s $(ARGS)

test-page: .venv/.stamp ## The page in headless Chromium; pictures in build/page (ARGS="-k terminal", ARGS=--all)
	@exec $(PY) -m pytest tests/page -p no:xdist $(ARGS)

test-docker: .venv/.stamp ## The same commands in docker's default container and in a sandbox (ARGS="-k sudo --docker-json FILE")
	@exec $(PY) -m pytest tests/docker -m docker -q -r fE --tb=line -p no:xdist $(ARGS)

test-facade: .venv/.stamp ## E2B's npm package, then E2B's own tests of its Python SDK with a table (CLONE=a clone of github.com/e2b-dev/E2B)
	@$(PY) -m pytest tests/e2b -m recipes_packages -p no:xdist $(ARGS)
	@$(if $(CLONE),exec $(PY) -m tests.e2b $(CLONE),echo "test-facade: E2B's own tests need CLONE")

check: .venv/.stamp ## Lint, format, types, import rules, generated code
	@exec infra/scripts/check

format: .venv/.stamp ## Format and fix what can be fixed
	@$(BIN)/ruff format $(SOURCES) && $(BIN)/ruff check --fix $(SOURCES)

generate: .venv/.stamp ## Write the synchronous SDK again from the asynchronous one
	@exec $(PY) infra/scripts/generate_sync.py

wheels: .venv/.stamp ## Build the wheels of holdfast and of its recipes (dist)
	@infra/scripts/page || echo "wheels: the page of this wheel has no terminal" >&2
	@$(PY) -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist . ./sdk_py/holdfast_recipes && ls dist

release: .venv/.stamp ## Build a release up to the upload: wheels, source archives, checks, checksums, notes (VERSION, ARGS="--key KEY") in dist/VERSION
	@infra/scripts/page || echo "release: npm has not brought the page's terminal" >&2
	@exec $(PY) infra/scripts/release.py $(if $(VERSION),--version $(VERSION)) $(ARGS)

bundle: .venv/.stamp ## Build the folder that is injected into images, and an image of it (build/bundle, build/bundle.tar)
	@exec $(PY) -m session_agent.bundle --output build/bundle --oci build/bundle.tar $(ARGS)

images: ## Build the images of gateway and bundle (REGISTRY, TAG, ARGS=--push)
	@exec infra/scripts/build $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(TAG),--tag $(TAG)) $(ARGS)

deploy: .venv/.stamp ## Put Holdfast on the cluster that kubectl reaches (OVERLAY=dev|generic|aks|knative, REGISTRY, TAG, MIRROR, PULL_SECRET)
	@exec $(PY) -m infra.scripts.deploy apply $(OVERLAY) $(ARGS)

cluster: .venv/.stamp ## Bring up a cluster for development (kind, k3d or minikube) and deploy dev on it (ARGS="--tool kind", --delete)
	@exec infra/scripts/cluster $(ARGS)

smoke: .venv/.stamp ## Try what was deployed: HOLDFAST_API_KEY (ARGS="--rolling 3" restarts gateways under sessions)
	@exec $(PY) -m infra.scripts.smoke $(ARGS)

acceptance: .venv/.stamp ## Test what is deployed, with faults: KUBECONFIG (ARGS="--overlay dev --steps smoke,faults"); writes acceptance.json
	@exec $(PY) -m infra.scripts.acceptance $(ARGS)

bench: .venv/.stamp ## Measure the figures of the budget, each beside its floor; writes bench.json
	@exec $(PY) -m tests.bench $(ARGS)

curves: .venv/.stamp ## Where cost grows: cost over the amount of work, with pictures, in build/curves (ARGS="--scale 0.1")
	@exec $(PY) -m tests.bench.curves $(ARGS)

copies: .venv/.stamp ## What a copy of a sandbox costs by its size, on ext4 and XFS, beside cp -a and tar; writes build/bench/copies.json
	@exec $(PY) -m tests.bench.copies $(ARGS)

peers: .venv/.stamp .venv-peers/.stamp ## The same command at peers from PyPI and here, in turn; writes build/bench/peers.json
	@exec $(PY) -m tests.bench.peers --python .venv-peers/bin/python $(ARGS)

.venv-peers/.stamp: infra/scripts/peers_venv
	@infra/scripts/peers_venv

load: .venv/.stamp ## Locust on a stack of its own or HOLDFAST_URL (SHAPE=ramp|step|spike|soak USERS DURATION WORKERS_LOAD, ARGS=ChurnUser)
	@exec $(PY) -m loadtest $(if $(SHAPE),--shape $(SHAPE)) $(if $(USERS),--users $(USERS)) $(if $(DURATION),--duration $(DURATION)) \
	  $(if $(WORKERS_LOAD),--workers $(WORKERS_LOAD)) $(ARGS)

chaos: .venv/.stamp ## Faults under load, for minutes (CHAOS_SECONDS, CHAOS_SEED, CHAOS_FULL=1); writes chaos.json and chaos.txt
	@exec $(PY) -m tests.faults

fuzz: .venv/.stamp ## Fresh examples for every property test (FUZZ_SECONDS; FUZZ_SEED and ARGS=a/test.py repeat a round)
	@WORKERS=$(WORKERS) exec $(PY) -m tests.fuzz $(ARGS)

integrations: .venv/.stamp ## Other people's harnesses, with their packages, on one stack; prints the table (ARGS="mcp mini" or --short)
	@exec $(PY) -m infra.integrations $(ARGS)

docs: .venv/.stamp .venv-docs/.stamp ## Build the documentation as a site and check its links (build/docs/site)
	@exec $(PY) -m infra.docs build/docs --zensical $(CURDIR)/.venv-docs/bin/zensical

.venv-docs/.stamp: infra/docs/requirements.txt | .venv/.stamp
	@rm -rf .venv-docs && $(PY) -m venv .venv-docs && .venv-docs/bin/python -m pip --disable-pip-version-check --quiet install -r $< && touch $@

recipes: .venv-train/.stamp ## What the recipes train, in minutes on a CPU: SFT and RL on a twin and in sandboxes, their tests
	@exec nice $(TRAIN) -m infra.recipes smoke

recipes-programs: .venv/.stamp ## Agents as they are published (npm, PyPI) in sandboxes on a scripted model; fetches their packages, minutes
	@exec nice $(PY) -m pytest tests/recipes -m recipes_packages -s $(ARGS)

recipes-learn: .venv-train/.stamp ## The registered learning runs, an hour on four cores; goes on where it was ended (ARGS=--more: their second part)
	@TRAIN=$(TRAIN) exec infra/scripts/recipes_learn $(ARGS)

.venv-train/.stamp: pyproject.toml infra/scripts/train_venv
	@infra/scripts/train_venv

clean: ## Remove what was made (not the data of a running stack)
	@rm -rf build dist bench.json acceptance.json chaos.json chaos.txt recipes.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .venv .venv-*
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
