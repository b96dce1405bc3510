"""The door for agents: fifteen tools over MCP."""
