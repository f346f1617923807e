"""The pure language of checks: cases, the twelve expectations, trials, outcomes, verdicts. No I/O but reading case files."""
