// Asks what wallets and explorers ask, with @solana/web3.js, which checks the form of each reply.
const { createRequire } = require("node:module");
const fs = require("node:fs");
const told = JSON.parse(fs.readFileSync(0, "utf8"));
const solana = createRequire(told.modules)("@solana/web3.js");
const { Connection, Keypair, PublicKey, SystemProgram, Transaction } = solana;

async function main() {
  const connection = new Connection(told.http, "confirmed");
  const user = Keypair.generate(), other = Keypair.generate().publicKey;
  const airdrop = await connection.requestAirdrop(user.publicKey, 2 * solana.LAMPORTS_PER_SOL);
  await connection.confirmTransaction({ signature: airdrop, ...await connection.getLatestBlockhash() });
  const send = SystemProgram.transfer({ fromPubkey: user.publicKey, toPubkey: other, lamports: 5_000_000 });
  const signature = await solana.sendAndConfirmTransaction(connection, new Transaction().add(send), [user]);
  const options = { commitment: "confirmed", maxSupportedTransactionVersion: 0 };
  const parsed = await connection.getParsedTransaction(signature, options);
  const block = await connection.getParsedBlock(parsed.slot, options);
  const owner = new PublicKey(told.owner), mint = new PublicKey(told.mint);
  const holding = await connection.getParsedTokenAccountsByOwner(owner, { mint });
  const several = await connection.getMultipleParsedAccounts([mint, new PublicKey(told.program), owner]);
  const changes = [];
  const seen = new Promise((resolve) => connection.onProgramAccountChange(
    solana.SystemProgram.programId, (one) => { changes.push(one.accountId.toBase58()); resolve(); },
    { filters: [{ dataSize: 0 }], encoding: "jsonParsed" },
  ));
  await new Promise((resolve) => setTimeout(resolve, 300)); // web3.js says not when it has subscribed
  await solana.sendAndConfirmTransaction(connection, new Transaction().add(send), [user]);
  await seen;
  console.log(JSON.stringify({
    sent: parsed.transaction.message.instructions[0].parsed, keys: parsed.transaction.message.accountKeys.length,
    found: block.transactions.some((one) => one.transaction.signatures.includes(signature)),
    blocks: (await connection.getBlocks(parsed.slot, parsed.slot, "confirmed")).length,
    signatures: (await connection.getBlockSignatures(parsed.slot, "confirmed")).signatures,
    held: holding.value.map((one) => one.account.data.parsed.info.tokenAmount.uiAmountString),
    kinds: several.value.map((one) => one.data.parsed?.type ?? one.data.length), changes: changes.length,
    nodes: (await connection.getClusterNodes()).length, votes: await connection.getVoteAccounts(),
    supply: (await connection.getSupply()).value.total > 0, largest: (await connection.getTokenLargestAccounts(mint)).value.length,
    rich: (await connection.getLargestAccounts()).value.length > 0, leaders: (await connection.getSlotLeaders(1, 3)).length,
    produced: Object.keys((await connection.getBlockProduction()).value.byIdentity).length,
    inflation: (await connection.getInflationGovernor()).total ?? 0, first: await connection.getFirstAvailableBlock(),
    oldest: await connection.getMinimumLedgerSlot(), stake: (await connection.getStakeMinimumDelegation()).value,
  }));
  process.exit(0);
}

main().catch((error) => { console.error(error); process.exit(1); });
