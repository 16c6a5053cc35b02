"""What users see, frozen in golden files, so that a restructuring of the code is seen to change none of it.

    golden/help       help pages of `mirrorless`, `python -m lab` and commands behind make targets, unwrapped
    golden/cli        key trees (names, nesting, JSON types) of every `--json` answer of `mirrorless`
    golden/reports    the same of jobs' reports and progress, of the lab's reports and state file, of the benchmark's
                      report and of the diff guard
    golden/schema     the SHA-256 of docs/replication.schema.json, which a unit test holds to its generator
    golden/bundles    distributions and third-party files of each function's bundle and of the Spark archive
    golden/templates  resources of each example's stacks, with a digest of their properties without assets' hashes

`make frozen` writes the golden files anew; the diff of the commit is then what changes for users.
`make frozen PART=help` writes one part.

Not covered, and why:

- values, and the wording of tables and error messages: unit tests hold those that matter;
- `--json` of `backfill start --dry-run` by its door: planning needs a source with records. It prints the structure of
  the dry runs of `verify` and `reconcile`, which are frozen;
- names of a benchmark's figures and of its description of the method: only a running benchmark has them;
- what the other benchmarks print, and pages (`report.html`): no program reads them;
- help of `infra.iam.execution_policy`, `infra.iam.operator` and the other benchmarks: mostly a module's docstring, or a
  name that differs between versions of Python;
- keys that are names (of a topic, a cluster, a cause): in samples they stand as they are, in types as `*`.
"""
