"""What users see, frozen in golden files, so that a restructuring of the code is seen to change none of it.

    golden/help       every help page, unwrapped
    golden/json       key trees (names, nesting, JSON types) of every `--json` answer, report and state file
    golden/bundles    distributions and foreign files of each function's bundle and of the Spark archive
    golden/templates  resources of each example's stacks, with a digest of their properties
    golden/schema.txt the SHA-256 of docs/replication.schema.json, which a contract test holds to its generator
    test_names.txt    names of tests; one that disappears must be in replaced_tests.toml
    coverage.toml     floors of branch coverage, for `python -m tests.frozen.coverage REPORT.json`

`make frozen` writes the golden files anew, and the names of tests that are new; the diff of the commit is what users
will see. `PART=help` writes one part.

Not covered, and why:

- values, wording of tables and error messages: only names and types of JSON are frozen; unit tests hold the rest;
- `--json` of `backfill start --dry-run` by its door: planning needs a source with records. It prints the same structure
  as the dry runs of `verify` and `reconcile`, which are frozen;
- figures of a benchmark's measurements: only a running benchmark names them. The structure around them is frozen;
- what the other benchmarks print, and the pages (`report.html`): nothing reads them by program;
- help of `infra.iam.operator` and of benchmarks without `prog`: Python 3.14 names the program differently there.
"""
