"""A server with OpenAI's protocol, and a page to chat on. Takes the extra `serve`: starlette, uvicorn and pydantic."""
