"""Common ground of routes and pages: sessions, access, errors, documents, metrics."""
