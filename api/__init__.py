"""The HTTP API: application factory, routes by resource, problem documents and web pages."""
