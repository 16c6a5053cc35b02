"""What Python imports by its name when it starts in a folder of a job: the recorder, for the whole process."""

from __future__ import annotations

from tests.support import aws_recorder

_recording = aws_recorder.recording(aws_recorder.note_call)
_recording.__enter__()  # for as long as the process lives
