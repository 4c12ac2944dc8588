"""All candidates at once, each under the template layout."""
