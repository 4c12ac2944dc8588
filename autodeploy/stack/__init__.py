"""The software stack as data: releases and their flags, features, frameworks, and the language their conditions use."""
