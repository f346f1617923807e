"""`evalfleet mcp`: the commands as tools of the Model Context Protocol, for a coding agent that works on the tree.

`tools` lists them and what they take and give, `playing` and `reading` do the work on a thread, `protocol` speaks with
the client, `http` serves it behind the server's tokens. Only `protocol` and `http` import the `mcp` package.
"""
