# Short names for the commands of this project. Without just: the lines below work as they stand.

# Three clients train one model together on this machine
demo *arguments:
    bash scripts/demo {{arguments}}

# What CI runs, with --all everything; other arguments go to pytest alone
test *arguments:
    bash scripts/test {{arguments}}

# Lint, types, floors, circles of imports, dead code, size budget
check:
    bash scripts/test --checks

# Every benchmark's table
bench *arguments:
    for name in benchmarks/[a-z]*.py; do .venv/bin/python "$name" {{arguments}}; done

# Simulated runs of fresh seeds, with faults and dishonest members: `just soak --minutes 60`
soak *arguments:
    .venv/bin/python scripts/soak.py {{arguments}}

# The named scenarios at full size: `just scenarios --names F1 F6 --seeds 1 2 3`
scenarios *arguments:
    .venv/bin/python scripts/named_scenarios.py {{arguments}}

# Every order of inputs of small runs, to the end: `just worlds --members 3 --world liar`
worlds *arguments:
    PYTHONPATH=tests .venv/bin/python -m model_checker {{arguments}}

# Changes of the core that no test notices: `just mutants --sample 300`
mutants *arguments:
    .venv/bin/python scripts/mutants.py {{arguments}}

# Changes of the Rust rules that neither traces nor random events notice: `just faults --sample 100`
faults *arguments:
    .venv/bin/python scripts/faults.py {{arguments}}

# Random events in core and in the compiled rules, of fresh seeds: `just differential --events 1000000`
differential *arguments:
    PYTHONPATH=tests .venv/bin/python -m differential {{arguments}}

# Pictures and tables of the documentation that follow from the code
docs:
    .venv/bin/python scripts/generate_architecture.py
    .venv/bin/python scripts/generate_events.py
    .venv/bin/python scripts/generate_layout.py
    .venv/bin/python scripts/generate_metrics.py
    .venv/bin/python scripts/generate_peer_protocol.py
    .venv/bin/python scripts/generate_settings.py

# The documentation as a site in build/site, with its links checked
site:
    .venv/bin/zensical build --strict

# The Solana programs, from source: `just programs --program coordinator`
programs *arguments:
    bash scripts/build-programs {{arguments}}

# The wheel, in dist/
wheel:
    .venv/bin/hatchling build -t wheel

# Write the locks of requirements/ anew: servers have a part of what trainers have, and these of what contributors have
lock:
    .venv/bin/uv pip compile --python-version 3.11 --no-header --no-annotate --upgrade --extra train --extra solana --extra dev -o requirements/dev.lock pyproject.toml
    .venv/bin/uv pip compile --python-version 3.11 --no-header --no-annotate --extra train --extra solana --extra ui -c requirements/dev.lock -o requirements/train.lock pyproject.toml
    .venv/bin/uv pip compile --python-version 3.11 --no-header --no-annotate -c requirements/dev.lock -o requirements/server.lock pyproject.toml
