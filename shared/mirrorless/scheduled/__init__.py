"""The scheduled functions: settings, tasks, the task runner."""
