"""A session from its lines to what it shows, with a client that answers by a script."""

from __future__ import annotations

import asyncio
import io
import signal
import threading

import pytest

from tessera.cli.client import AnswerDelta
from tessera.cli.talk.background_loop import BackgroundLoop
from tessera.cli.talk.session import ChatSession, Completions, Session, Terminal
from tessera.errors import EngineDeadError, OverloadedError, RequestError


class Typed(io.StringIO):
    """A terminal's end."""

    def isatty(self):
        return True


class Client:
    """Answers with `pieces`; an exception among them is raised, and Interrupt is Ctrl-C."""

    model = "m"
    max_model_len = None

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.sampling = []

    def chat(self, messages, sampling):
        self.sampling.append(sampling)
        return self._answer([(message["role"], message["content"]) for message in messages])

    def complete(self, prompt, sampling):
        self.sampling.append(sampling)
        return self._answer(prompt)

    async def _answer(self, asked):
        self.asked.append(asked)
        for piece in self.answers.pop(0):
            if piece is KeyboardInterrupt:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                await asyncio.sleep(3600)
            if isinstance(piece, Exception):
                raise piece
            yield AnswerDelta(piece)
        yield AnswerDelta(finish_reason="length" if piece == "cut" else "stop")


def talked(dialogue, lines):
    """(answers, notes) of a session in which the lines are typed."""
    answers, notes = io.StringIO(), io.StringIO()
    with BackgroundLoop() as loop:
        Session(loop, dialogue, Terminal(Typed(lines), answers, notes)).until_end()
    return answers.getvalue(), notes.getvalue()


def chat(client, lines, system=None):
    return talked(ChatSession(client, {"temperature": 0.5}, system), lines)


def test_a_conversation_is_kept_until_it_is_reset():
    client = Client(["Hel", "lo"], ["Fine", "\n"], ["Yes"])
    answers, notes = chat(client, "Hi\nHow are you?\n/reset\n\n Well? \n", system="Be kind.")
    system = ("system", "Be kind.")
    first = [system, ("user", "Hi")]
    assert client.asked == [
        first,
        [*first, ("assistant", "Hello"), ("user", "How are you?")],
        [system, ("user", "Well?")],
    ]
    assert answers == "Hello\nFine\nYes\n"
    assert "Chatting with m." in notes
    assert "New conversation." in notes
    assert client.sampling == [{"temperature": 0.5}] * 3


def test_ctrl_c_stops_an_answer_and_keeps_the_session_and_what_was_said():
    client = Client(["Once", KeyboardInterrupt], [KeyboardInterrupt], ["End"])
    answers, notes = chat(client, "Tell\nMore\nGo on\n")
    assert answers == "OnceEnd\n"
    assert notes.count("(stopped)") == 2
    assert client.asked[2] == [("user", "Tell"), ("assistant", "Once"), ("user", "Go on")]


def test_an_error_is_one_line_and_its_question_is_forgotten():
    client = Client([OverloadedError("full")], [RequestError("too long")], ["Hi"])
    answers, notes = chat(client, "a\nb\nc\n")
    assert "error: full\n" in notes
    assert "error: too long\n" in notes
    assert (answers, client.asked[2]) == ("Hi\n", [("user", "c")])


def test_a_dead_engine_ends_the_session():
    with pytest.raises(EngineDeadError):
        chat(Client([EngineDeadError("gone")]), "a\nb\n")


def test_commands_are_few_and_what_is_none_is_asked():
    client = Client(["x"])
    _, notes = chat(client, "/help\n/usr is what?\n/exit\nnever\n")
    assert "Unknown command /help; use /reset, /image, /exit.\n" in notes
    assert client.asked == [[("user", "/usr is what?")]]


def test_an_image_is_shown_with_the_next_question(tmp_path):
    (tmp_path / "a.png").write_bytes(b"pixels")
    client = Client(["A cat"], ["Yes"], ["Hi"])
    lines = f"/image {tmp_path}/a.png\n/image {tmp_path}/b.png\n/image\nWhat?\nSure?\n/reset now\n/reset\nHi\n"
    _, notes = chat(client, lines)
    first, *others = client.asked
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cGl4ZWxz"}}
    assert first == [("user", [shown, {"type": "text", "text": "What?"}])]
    assert others == [[*first, ("assistant", "A cat"), ("user", "Sure?")], [("user", "Hi")]]
    assert "b.png cannot be read: No such file or directory.\n" in notes
    assert "error: Name a file: /image FILE.\n" in notes
    assert "error: /reset stands alone in its line.\n" in notes


def test_an_answer_at_its_limit_is_said_to_be():
    _, notes = chat(Client(["cut"]), "a\n")
    assert "raise it with --max-tokens" in notes


def test_completions_have_no_memory():
    client = Client(["b"], ["d"])
    answers, notes = talked(Completions(client, {}), "a\nc\n/reset\n")
    assert client.asked == ["a", "c"]
    assert answers == "b\nd\n"
    assert "Unknown command /reset; use /exit." in notes


def test_one_question_is_answered_plainly():
    answers = io.StringIO()
    terminal = Terminal(io.StringIO("What?\n"), answers, io.StringIO())
    assert not terminal.interactive
    with BackgroundLoop() as loop:
        Session(loop, ChatSession(Client(["a\x1b[2J", "b"]), {}, None), terminal).once(terminal.everything())
        with pytest.raises(OverloadedError):
            Session(loop, ChatSession(Client([OverloadedError("full")]), {}, None), terminal).once("x")
    assert answers.getvalue() == "a\x1b[2Jb\n"


def test_a_terminal_is_shown_text_and_nothing_that_moves_it():
    shown = Typed()
    Terminal(Typed(), shown, io.StringIO()).answer("a\x1b]0;title\x07b\x9bc\r\td\né")
    assert shown.getvalue() == "a]0;titlebc\td\né"
