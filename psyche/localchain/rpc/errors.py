"""Errors that go back to whoever called, with the numbers and shapes that Solana's own servers use."""

from typing import Any, Final

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
UNKNOWN_METHOD: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CLEANED_UP: Final = -32001
PREFLIGHT_FAILED: Final = -32002
SIGNATURE_FAILED: Final = -32003
NO_BLOCK: Final = -32004
SKIPPED_SLOT: Final = -32007
UNSUPPORTED_VERSION: Final = -32015
BEHIND: Final = -32016


class CallError(Exception):
    """A call that ends with an error object."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {"code": self.code, "message": str(self)}
        if self.data is not None:
            described["data"] = self.data
        return described


class InvalidParams(CallError):
    """A parameter is missing, or has another form than the method wants."""

    def __init__(self, message: str) -> None:
        super().__init__(INVALID_PARAMS, message)


_TRANSACTION: Final = {
    "AccountInUse": "Account in use",
    "AccountNotFound": "Attempt to debit an account but found no record of a prior credit.",
    "AddressLookupTableNotFound": "Transaction loads an address table account that doesn't exist",
    "AlreadyProcessed": "This transaction has already been processed",
    "BlockhashNotFound": "Blockhash not found",
    "InsufficientFundsForFee": "Insufficient funds for fee",
    "InvalidAccountForFee": "This account may not be used to pay transaction fees",
    "InvalidProgramForExecution": "This program may not be used for executing instructions",
    "MaxLoadedAccountsDataSizeExceeded": "Transaction loaded accounts data exceeds the cap",
    "ProgramAccountNotFound": "Attempt to load a program that does not exist",
    "SanitizeFailure": "Transaction failed to sanitize accounts offsets correctly",
    "SignatureFailure": "Transaction did not pass signature verification",
}
_INSTRUCTION: Final = {
    "AccountAlreadyInitialized": "instruction requires an uninitialized account",
    "AccountBorrowFailed": "instruction tries to borrow reference for an account which is already borrowed",
    "AccountDataTooSmall": "account data too small for instruction",
    "ComputationalBudgetExceeded": "Computational budget exceeded",
    "IncorrectProgramId": "incorrect program id for instruction",
    "InsufficientFunds": "insufficient funds for instruction",
    "InvalidAccountData": "invalid account data for instruction",
    "InvalidAccountOwner": "Invalid account owner",
    "InvalidArgument": "invalid program argument",
    "InvalidInstructionData": "invalid instruction data",
    "InvalidSeeds": "Provided seeds do not result in a valid address",
    "MissingAccount": "An account required by the instruction is missing",
    "MissingRequiredSignature": "missing required signature for instruction",
    "PrivilegeEscalation": "Cross-program invocation with unauthorized signer or writable account",
    "ProgramFailedToComplete": "Program failed to complete",
    "ReadonlyDataModified": "instruction modified data of a read-only account",
    "UnbalancedInstruction": "sum of account balances before and after instruction do not match",
    "UninitializedAccount": "instruction requires an initialized account",
    "UnsupportedProgramId": "Unsupported program id",
}


def describe_transaction_error(error: Any) -> str:
    """The chain's sentence for a transaction's error, as its JSON gives it."""
    if isinstance(error, str):
        return _TRANSACTION.get(error, error)
    name, detail = next(iter(error.items()))
    if name == "InstructionError":
        index, reason = detail
        return f"Error processing Instruction {index}: {_describe_instruction_error(reason)}"
    if name == "InsufficientFundsForRent":
        return f"Transaction results in an account ({detail['account_index']}) with insufficient funds for rent"
    return f"{name}: {detail}"


def _describe_instruction_error(reason: Any) -> str:
    if isinstance(reason, str):
        return _INSTRUCTION.get(reason, reason)
    name, detail = next(iter(reason.items()))
    return f"custom program error: {detail:#x}" if name == "Custom" else f"{name}: {detail}"
