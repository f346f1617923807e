"""Task to recorded attempt: plays conversations, runs graders, aggregates; the Celery app."""
