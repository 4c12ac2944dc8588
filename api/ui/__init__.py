"""The pages: server-rendered HTML that reads without scripts, in English and Chinese."""

from api.ui.routes import router

__all__ = ["router"]
