"""Writes all files of a run: HTML, JUnit, Markdown, badge. Each file is written completely or not at all."""
