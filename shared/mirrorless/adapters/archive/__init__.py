"""An archive of Parquet files as a source of records."""
