"""The pages: server-rendered HTML that reads without scripts, in English and Chinese."""

from api.ui.documentation import router as documentation_router
from api.ui.plan_routes import router as plan_router
from api.ui.routes import router

router.include_router(plan_router)
router.include_router(documentation_router)

__all__ = ["router"]
