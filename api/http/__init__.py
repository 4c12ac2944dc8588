"""What routes and pages share: sessions, access, errors, documents, metrics."""
