"""Mirrorless and real MirrorMaker 2, measured side by side: same machine, same brokers, same records, in turns.

`python -m tests.benchmarks.beside_mm2` measures and writes the report; `make bench` calls it.
"""
