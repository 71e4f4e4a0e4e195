"""Errors as a client sees them: OpenAI's error object, and its HTTP status."""

from starlette.responses import JSONResponse


class ApiError(Exception):
    """A request cannot be met.

    Args:
        status: of HTTP.
        message: for people.
        param: the field of the request that is to blame, if one is.
        code: for programs, such as `model_not_found`.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        # A field's name may hold half of a surrogate pair, which UTF-8 cannot.
        self.message, self.param = (text and text.encode(errors="replace").decode() for text in (message, param))
        self.status, self.code = status, code

    def to_json(self) -> dict:
        """The error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The HTTP response; 429 says that another attempt is worth it."""
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(self.status)
        return JSONResponse(self.to_json(), self.status, headers)
