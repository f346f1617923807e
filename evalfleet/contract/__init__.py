"""The v2 wire: ids, problem documents, models, the event stream, the async client; task names and payloads."""
