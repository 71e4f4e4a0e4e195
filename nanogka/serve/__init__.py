"""A server with OpenAI's protocol and a chat page, for one machine. Needs the extra `serve`."""
