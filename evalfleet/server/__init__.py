"""The self-hosted v2 API: runs, events, evaluations, harnesses; the store; the drivers that run an agent."""
