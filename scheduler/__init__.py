"""Tree to plan to tasks: expands cases × trials, feeds the queue, reaps and reconciles; the command line."""
