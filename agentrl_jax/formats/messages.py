"""Splits the text that an agent reads into messages, as its chat format joined them."""

import dataclasses

from agentrl_jax.text.chat import Chat
from agentrl_jax.text.pieces import spelled


@dataclasses.dataclass(frozen=True)
class MessageFormat:
    """The text around the messages of a run.

    All texts have special tokens by name. What does not have the expected form, for example because an observation was
    cut, is returned whole: no text is lost.
    """

    chat: Chat
    openings: tuple[str, ...]
    """Texts that may be inserted before a response, such as `<think>`; the first that is found counts."""

    def first(self, text: str) -> tuple[str | None, str, str]:
        """Splits the text before the first response into system message (None without one), user message, opening."""
        body, opening = self._split_end(text)
        if self.chat.open_system is None:
            return None, body.removeprefix(spelled(self.chat.open_user)), opening
        start = spelled(self.chat.open_system)
        header = spelled(self.chat.first_user_header)
        ends = [spelled(self.chat.system_end) + header, *([header] if self.chat.ends_optional else [])]
        if body.startswith(start):
            for end in filter(None, ends):
                system, found, user = body.removeprefix(start).partition(end)
                if found:
                    return system, user, opening
        return None, body.removeprefix(spelled(self.chat.open_user)), opening

    def later(self, text: str) -> tuple[str, str]:
        """Splits the text between two responses into the user message and the opening of the second response."""
        body, opening = self._split_end(text)
        body = body.removeprefix(spelled(self.chat.response_end))
        return body.removeprefix(spelled((*self.chat.after_end, *self.chat.user_header))), opening

    def _split_end(self, text: str) -> tuple[str, str]:
        """Removes the end of a user message and the header of the response; returns the rest and the opening."""
        header = spelled(self.chat.response_header)
        ends = [spelled(self.chat.user_end) + header, *([header] if self.chat.ends_optional else [])]
        for opening in (*self.openings, ""):
            for end in ends:
                if text.endswith(end + opening):
                    return text.removesuffix(end + opening), opening
        return text, ""
