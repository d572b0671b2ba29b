"""Tools that agents may call: typed functions, the parser of tool calls, and the tool loop."""

from coterie.tools.call_parser import BadCall, Call, read_calls
from coterie.tools.tool import Tool, ToolError, describe, tool_schema
from coterie.tools.tool_loop import Conversation, converse, execute

__all__ = [
    "BadCall",
    "Call",
    "Conversation",
    "Tool",
    "ToolError",
    "converse",
    "describe",
    "execute",
    "read_calls",
    "tool_schema",
]
