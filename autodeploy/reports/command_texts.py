"""What the command line says beside plans and checks, in English and Chinese."""

from __future__ import annotations

from autodeploy.messages import Section

command_text = Section("command")
