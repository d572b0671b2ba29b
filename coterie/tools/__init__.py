"""What agents may call: typed functions, and how a model's calls reach them."""

from coterie.tools.calls import BadCall, Call, read_calls
from coterie.tools.conversation import Conversation, converse
from coterie.tools.tool import Tool, ToolError, describe, tool_schema
from coterie.tools.use import use

__all__ = [
    "BadCall",
    "Call",
    "Conversation",
    "Tool",
    "ToolError",
    "converse",
    "describe",
    "read_calls",
    "tool_schema",
    "use",
]
