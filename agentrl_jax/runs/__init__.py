"""What a run leaves behind and shows: `run_folder`, `checkpoint`, `curves`, `live` and `totals`."""
