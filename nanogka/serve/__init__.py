"""A server that speaks OpenAI's protocol, and the page to chat on. Takes the extra `serve`: starlette and uvicorn."""
