"""The HTTP rim: application factory, routes by resource, problems and pages."""
