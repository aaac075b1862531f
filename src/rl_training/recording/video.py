"""Writing frames into an MP4 or GIF file one by one, so that at most two of them are in memory."""

import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from shutil import which
from typing import IO, Any

from rl_training.envs.rendering import Pixels
from rl_training.errors import ConfigError
from rl_training.experiment.files import write_atomically

Writer = Callable[[IO[bytes], Iterable[Pixels], float], None]

_INSTALL = "pip install 'rl-training[video]'"


def check_video(path: Path) -> None:
    """Refuse a file that could not be written: another format, a directory, or a missing package."""
    if path.suffix.lower() not in _WRITERS:
        raise ConfigError(f"{path}: unknown video format; give a name that ends in {' or '.join(_WRITERS)}")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; give the name of a file")
    if path.suffix.lower() == ".mp4":
        find_ffmpeg()
    elif find_spec("PIL") is None:
        raise ConfigError(f"writing GIF needs an extra: {_INSTALL}")


def write_video(path: Path, frames: Iterable[Pixels], fps: float) -> int:
    """Write the frames and return their number. A failure leaves no new file, and an older file unchanged."""
    write, counter = _WRITERS[path.suffix.lower()], count()
    counted = (frame for frame, _ in zip(_check_sizes(frames), counter, strict=False))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: write(file, counted, fps))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    return next(counter)


def _check_sizes(frames: Iterable[Pixels]) -> Iterator[Pixels]:
    """Yield the frames. Refuse a frame that differs in size from the first one."""
    shape: tuple[int, ...] | None = None
    for frame in frames:
        shape = shape or frame.shape
        if frame.shape != shape:
            raise ConfigError(
                f"a frame has shape {frame.shape}, earlier ones have {shape}: all frames of a video need the same size"
            )
        yield frame


def find_ffmpeg() -> str:
    """Return the path of ffmpeg: from the `video` extra, otherwise from the system."""
    if find_spec("imageio_ffmpeg") is not None:
        import imageio_ffmpeg

        with suppress(RuntimeError):  # the wheel has no binary for this machine
            return str(imageio_ffmpeg.get_ffmpeg_exe())
    found = which("ffmpeg")
    if found is None:
        raise ConfigError(f"writing MP4 needs an extra: {_INSTALL}; or install ffmpeg, or write a .gif")
    return found


def _write_mp4(file: IO[bytes], frames: Iterable[Pixels], fps: float) -> None:
    """Pipe the frames to ffmpeg, which writes the file."""
    remaining = iter(frames)
    first = next(remaining)
    height, width, _ = first.shape
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    # Every browser plays H.264 with 4:2:0 colour, which needs an even width and height, and the index at the start.
    even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
    target = ["-c:v", "libx264", "-pix_fmt", "yuv420p", *even, "-movflags", "+faststart", "-f", "mp4", "-y", file.name]
    command = [find_ffmpeg(), "-loglevel", "error", *source, *target]
    with tempfile.TemporaryFile() as messages:
        returncode = _pipe_frames(command, chain([first], remaining), messages)
        messages.seek(0)
        output = " ".join(messages.read().decode(errors="replace").split())
    if returncode != 0:
        raise OSError(f"ffmpeg failed: {output or f'exit code {returncode}'}")


def _pipe_frames(command: Sequence[str], frames: Iterable[Pixels], messages: IO[bytes]) -> int:
    """Send the frames to a process and return its exit code, even if it ends before the last frame."""
    with (
        suppress(BrokenPipeError),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=messages) as process,
    ):
        assert process.stdin is not None
        try:
            for frame in frames:
                process.stdin.write(frame.tobytes())
                process.stdin.flush()
        except BaseException:
            process.kill()
            raise
    return process.returncode


def _write_gif(file: IO[bytes], frames: Iterable[Pixels], fps: float) -> None:
    """Write only the part of each frame that differs from the last. Pillow's writer would keep all frames in memory."""
    from PIL import Image, ImageChops
    from PIL.GifImagePlugin import getdata, getheader

    before: Image.Image | None = None
    for index, frame in enumerate(frames):
        image = Image.fromarray(frame)
        box = (0, 0, *image.size)
        if before is None:
            header, _ = getheader(image.quantize(), info={"loop": 0})
            file.write(b"".join(header))
        else:
            box = ImageChops.difference(image, before).getbbox() or (0, 0, 1, 1)
        # GIF durations are hundredths of a second. Rounding the start times, not the durations, keeps the speed.
        duration = 10 * (round(100 * (index + 1) / fps) - round(100 * index / fps))
        part: Any = image.crop(box).quantize()
        file.write(b"".join(getdata(part, box[:2], duration=duration, include_color_table=True)))
        before = image
    file.write(b";")


_WRITERS: dict[str, Writer] = {".mp4": _write_mp4, ".gif": _write_gif}
