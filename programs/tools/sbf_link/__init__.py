"""Links LLVM bitcode of Rust programs into the format that Solana loads."""
