"""The programs' IDLs in the form that tools from before Anchor 0.30 read."""

from typing import Any, Final

_SIMPLE: Final = {"pubkey": "publicKey"}


def convert_to_legacy(idl: dict[str, Any]) -> dict[str, Any]:
    """An interface in the form of before Anchor 0.30.

    That form has no discriminators: they are the usual ones in all our programs. It has no layout either, so accounts
    are read field by field; ours have no gaps.
    """
    types = {one["name"]: one["type"] for one in idl["types"]}
    accounts = [one["name"] for one in idl["accounts"]]
    events = [one["name"] for one in idl.get("events", ())]
    return {
        "version": idl["metadata"]["version"],
        "name": idl["metadata"]["name"],
        "instructions": [_convert_instruction(one) for one in idl["instructions"]],
        "accounts": [{"name": name, "type": _convert_struct(types[name])} for name in accounts],
        "types": [
            {"name": name, "type": _convert_struct(kind)}
            for name, kind in types.items()
            if name not in accounts and name not in events
        ],
        "events": [
            {"name": name, "fields": [{**field, "index": False} for field in _convert_struct(types[name])["fields"]]}
            for name in events
        ],
        "errors": idl["errors"],
        "constants": idl.get("constants", []),
        "metadata": {"address": idl["address"]},
    }


def _convert_instruction(instruction: dict[str, Any]) -> dict[str, Any]:
    accounts = [
        {
            "name": _to_camel(one["name"]),
            "isMut": one.get("writable", False),
            "isSigner": one.get("signer", False),
            "isOptional": one.get("optional", False),
        }
        for one in instruction["accounts"]
    ]
    arguments = [_convert_field(one) for one in instruction["args"]]
    return {"name": _to_camel(instruction["name"]), "accounts": accounts, "args": arguments}


def _convert_struct(kind: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind["kind"], "fields": [_convert_field(one) for one in kind["fields"]]}


def _convert_field(field: dict[str, Any]) -> dict[str, Any]:
    return {"name": _to_camel(field["name"]), "type": _convert_type(field["type"])}


def _convert_type(kind: Any) -> Any:
    if isinstance(kind, str):
        return _SIMPLE.get(kind, kind)
    name, inner = next(iter(kind.items()))
    if name == "defined":
        return {"defined": inner["name"]}
    return {name: [_convert_type(inner[0]), inner[1]] if name == "array" else _convert_type(inner)}


def _to_camel(name: str) -> str:
    lead = "_" * (len(name) - len(name.lstrip("_")))
    first, *rest = name.lstrip("_").split("_")
    return lead + first + "".join(word.title() for word in rest)
