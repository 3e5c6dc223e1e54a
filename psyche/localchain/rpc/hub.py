"""Subscriptions: who wants to hear of what. Everybody who asks alike shares one subscription, and its encoded text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
from solders.account import Account
from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche.localchain.bank import Bank, CompleteSlot
from psyche.localchain.rpc.calls import Method
from psyche.localchain.rpc.encodings import CLOSED, AccountFilter, Form, accept_all, describe_account, read_filters
from psyche.localchain.rpc.errors import CallError, InvalidParams
from psyche.localchain.rpc.landed import describe_logs, names_any
from psyche.localchain.rpc.params import COMMITMENTS, Params, check_key

MAX_SUBSCRIPTIONS: Final = 100  # of one connection
_TOO_LONG: Final = "error: data too large for bs58 encoding"


class Listener(Protocol):
    """A connection that notifications go to."""

    def put(self, text: bytes) -> None:
        """Queue a text; never waits."""
        ...


@dataclass(frozen=True)  # topics of different kinds are never equal, as empty tuples are
class AccountTopic:
    """One account. The commitment is only part of the name: all read the same state."""

    key: Pubkey
    form: Form
    commitment: str


@dataclass(frozen=True)
class ProgramTopic:
    """All accounts of a program that pass the filters."""

    program: Pubkey
    form: Form
    filters: tuple[AccountFilter, ...]
    commitment: str


@dataclass(frozen=True)
class LogsTopic:
    """The logs of transactions that name one of the keys; of all if there are none."""

    keys: frozenset[Pubkey]
    commitment: str


@dataclass(frozen=True)
class SignatureTopic:
    """One transaction, until it has reached the commitment."""

    signature: Signature
    commitment: str
    is_told_of_receipt: bool


@dataclass(frozen=True)
class SlotTopic:
    """Each slot that begins."""


@dataclass(frozen=True)
class RootTopic:
    """Each slot that counts as finalized."""


Topic = AccountTopic | ProgramTopic | LogsTopic | SignatureTopic | SlotTopic | RootTopic


class SharedSubscription:
    """A topic with its listeners. Its number is the same for all of them."""

    def __init__(self, number: int, topic: Topic) -> None:
        self.number = number
        self.topic = topic
        self.listeners: dict[Listener, None] = {}

    def tell(self, name: str, result: Any) -> None:
        """Send all listeners a notification, encoded once."""
        text = encode_notification(name, self.number, result)
        for listener in list(self.listeners):
            listener.put(text)


def encode_notification(name: str, number: int, result: Any) -> bytes:
    """A notification to the subscription of this number."""
    params = {"result": result, "subscription": number}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": f"{name}Notification", "params": params})


class SubscriptionHub:
    """All subscriptions to a chain."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._by_topic: dict[Topic, SharedSubscription] = {}
        self._count = 0
        bank.on_block.append(self._take_block)

    # --- subscribing ------------------------------------------------------------------------------------

    def make_methods(self, listener: Listener) -> dict[str, Method]:
        """The methods of one connection."""
        methods: dict[str, Method] = {}
        for name in READERS:
            methods[f"{name}Subscribe"] = self._make_subscribe(listener, READERS[name])
            methods[f"{name}Unsubscribe"] = lambda params: self._unsubscribe(listener, params)
        return methods

    def _make_subscribe(self, listener: Listener, read: Callable[[Params], Topic]) -> Method:
        return lambda params: self._subscribe(listener, read(params))

    def _subscribe(self, listener: Listener, topic: Topic) -> int:
        if len(list(self._find(listener))) >= MAX_SUBSCRIPTIONS:
            raise InvalidParams(f"a connection has at most {MAX_SUBSCRIPTIONS} subscriptions: unsubscribe from some")
        found = self._by_topic.get(topic)
        if found is None:
            self._count += 1
            found = self._by_topic[topic] = SharedSubscription(self._count, topic)
        found.listeners[listener] = None
        return found.number

    def _unsubscribe(self, listener: Listener, params: Params) -> bool:
        number = params.take_integer(0)
        for found in self._find(listener):
            if found.number == number:
                self._remove(found, listener)
                return True
        raise InvalidParams("Invalid subscription id.")

    def forget(self, listener: Listener) -> None:
        """End all subscriptions of a connection."""
        for found in list(self._find(listener)):
            self._remove(found, listener)

    def _find(self, listener: Listener) -> Iterator[SharedSubscription]:
        return (one for one in self._by_topic.values() if listener in one.listeners)

    def _remove(self, found: SharedSubscription, listener: Listener) -> None:
        found.listeners.pop(listener, None)
        if not found.listeners:
            self._by_topic.pop(found.topic, None)

    # --- telling ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Tell of transactions that have reached what subscribers wait for; to be called behind a reply."""
        for found in list(self._by_topic.values()):
            if isinstance(found.topic, SignatureTopic):
                self._settle_one(found, found.topic)

    def _settle_one(self, found: SharedSubscription, topic: SignatureTopic) -> None:
        status = self._bank.get_status(topic.signature)
        if status is None:
            return
        level = self._bank.get_level(status.slot)
        if COMMITMENTS.index(level) >= COMMITMENTS.index(topic.commitment):
            found.tell("signature", self._wrap(status.slot, {"err": status.error}))
            self._by_topic.pop(topic, None)  # it has said all there is to say

    def _take_block(self, block: CompleteSlot) -> None:
        for found in list(self._by_topic.values()):
            self._tell_block(found, found.topic, block)

    def _tell_block(self, found: SharedSubscription, topic: Topic, block: CompleteSlot) -> None:
        if isinstance(topic, AccountTopic):
            if topic.key in block.written:
                account = self._bank.get_account(topic.key) or CLOSED
                found.tell("account", self._wrap(block.slot, self._describe(account, topic.form)))
        elif isinstance(topic, ProgramTopic):
            self._tell_program(found, topic, block)
        elif isinstance(topic, LogsTopic):
            for record in block.records:
                if not topic.keys or names_any(record, topic.keys):
                    found.tell("logs", self._wrap(block.slot, describe_logs(record)))
        elif isinstance(topic, SignatureTopic):
            self._tell_signature(found, topic, block)
        elif isinstance(topic, SlotTopic):
            found.tell("slot", {"parent": block.slot, "root": self._bank.root, "slot": self._bank.slot})
        elif self._bank.root:
            found.tell("root", self._bank.root)

    def _tell_program(self, found: SharedSubscription, topic: ProgramTopic, block: CompleteSlot) -> None:
        for key in block.written:
            account = self._bank.get_account(key)
            if account is not None and account.owner == topic.program and accept_all(topic.filters, account):
                value = {"pubkey": str(key), "account": self._describe(account, topic.form)}
                found.tell("program", self._wrap(block.slot, value))

    def _tell_signature(self, found: SharedSubscription, topic: SignatureTopic, block: CompleteSlot) -> None:
        if topic.is_told_of_receipt and any(record.signature == topic.signature for record in block.records):
            found.tell("signature", self._wrap(block.slot, "receivedSignature"))
        self._settle_one(found, topic)

    def _describe(self, account: Account, form: Form) -> dict[str, Any] | None:
        """As in replies, but nobody can be told that the account is too long for base58."""
        try:
            return describe_account(account, form, self._bank.get_account)
        except CallError:
            described = describe_account(account, Form("base64", 0, 0), self._bank.get_account)
            return None if described is None else {**described, "data": _TOO_LONG}

    def _wrap(self, slot: int, value: Any) -> dict[str, Any]:
        return {"context": {"slot": slot}, "value": value}


def _read_account(params: Params) -> AccountTopic:
    config = params.get_config(1)
    return AccountTopic(params.take_key(0), Form.read(config), config.get_commitment())


def _read_program(params: Params) -> ProgramTopic:
    config = params.get_config(1)
    return ProgramTopic(params.take_key(0), Form.read(config), read_filters(config), config.get_commitment())


def _read_logs(params: Params) -> LogsTopic:
    wanted, commitment = params.take(0), params.get_config(1).get_commitment()
    if wanted in ("all", "allWithVotes"):
        return LogsTopic(frozenset(), commitment)
    mentions = wanted.get("mentions") if isinstance(wanted, dict) else None
    if not isinstance(mentions, list) or len(mentions) != 1:
        raise InvalidParams("Invalid Request: Only 1 address supported")
    return LogsTopic(frozenset({check_key(mentions[0])}), commitment)


def _read_signature(params: Params) -> SignatureTopic:
    config = params.get_config(1)
    signature = params.take_signature(0)
    return SignatureTopic(signature, config.get_commitment(), config.get_flag("enableReceivedNotification"))


READERS: Final[dict[str, Callable[[Params], Topic]]] = {
    "account": _read_account,
    "logs": _read_logs,
    "program": _read_program,
    "root": lambda _params: RootTopic(),
    "signature": _read_signature,
    "slot": lambda _params: SlotTopic(),
}
