"""The application under test."""
from fastapi import FastAPI
from api.ui import router

def application(services):
    app = FastAPI()
    app.state.services = services
    app.include_router(router)
    return app
