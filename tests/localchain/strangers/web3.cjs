// Joins a run with @solana/web3.js and the interface's JSON alone: no Anchor, no code of this project.
const { createRequire } = require("node:module");
const fs = require("node:fs");
const told = JSON.parse(fs.readFileSync(0, "utf8"));
const solana = createRequire(told.modules)("@solana/web3.js");
const { Connection, Keypair, PublicKey, Transaction, TransactionInstruction, VersionedTransaction } = solana;

const idl = JSON.parse(fs.readFileSync(told.idl, "utf8"));
const program = new PublicKey(idl.address);
const account = new PublicKey(told.account);
const find = (seeds, owner) => PublicKey.findProgramAddressSync(seeds, owner)[0];
const instance = find([Buffer.from("coordinator"), Buffer.from(told.run_id)], program);
const authorization = find(
  [Buffer.from("Authorization"), new PublicKey(told.grantor).toBuffer(), Buffer.alloc(32), Buffer.from("CoordinatorJoinRun")],
  new PublicKey(told.authorizer),
);

function build(name, body, keys) {
  const found = idl.instructions.find((one) => one.name === name);
  const metas = found.accounts.map((one) => ({
    pubkey: keys[one.name], isSigner: !!one.signer, isWritable: !!one.writable,
  }));
  return new TransactionInstruction({ programId: program, keys: metas, data: Buffer.concat([Buffer.from(found.discriminator), body]) });
}

async function main() {
  const connection = new Connection(told.http, "confirmed");
  const user = Keypair.generate(), p2p = Keypair.generate();
  const airdrop = await connection.requestAirdrop(user.publicKey, 2 * solana.LAMPORTS_PER_SOL);
  const latest = await connection.getLatestBlockhash();
  await connection.confirmTransaction({ signature: airdrop, ...latest });

  const changes = [], logs = [], slots = [];
  const seen = new Promise((resolve) => connection.onAccountChange(account, (info, context) => {
    changes.push([context.slot, info.data.length]);
    if (info.data.includes(user.publicKey.toBuffer())) resolve();
  }));
  connection.onLogs(program, (entry) => logs.push(entry));
  connection.onSlotChange((info) => slots.push(info.slot));
  await new Promise((resolve) => setTimeout(resolve, 300)); // web3.js says not when it has subscribed

  const keys = {
    user: user.publicKey, p2p: p2p.publicKey, authorization,
    coordinator_instance: instance, coordinator_account: account,
  };
  const join = build("join_run", Buffer.alloc(8), keys);
  const signature = await solana.sendAndConfirmTransaction(connection, new Transaction().add(join), [user, p2p]);
  await seen;
  const landed = await connection.getTransaction(signature, { commitment: "confirmed", maxSupportedTransactionVersion: 0 });

  // No slot is reclaimed while there is room: refused before it is sent, with the program's number. As a v0 transaction.
  const message = new solana.TransactionMessage({
    payerKey: user.publicKey, recentBlockhash: (await connection.getLatestBlockhash()).blockhash,
    instructions: [build("reclaim_slot", Buffer.alloc(0), keys)],
  }).compileToV0Message();
  const reclaim = new VersionedTransaction(message);
  reclaim.sign([user]);
  let refused = null;
  try {
    await connection.sendTransaction(reclaim);
  } catch (error) {
    refused = { text: error.message, logs: (error.logs || error.transactionLogs || []).length };
  }
  const size = told.account_bytes;
  const found = await connection.getProgramAccounts(program, { filters: [{ dataSize: size }], dataSlice: { offset: 0, length: 8 } });
  const listed = await connection.getSignaturesForAddress(user.publicKey, {}, "confirmed");
  console.log(JSON.stringify({
    user: user.publicKey.toBase58(), p2p: p2p.publicKey.toBase58(), changes, slots: slots.length,
    logs: logs.length, fee: landed.meta.fee, error: landed.meta.err, refused,
    found: found.map((one) => one.pubkey.toBase58()), listed: listed.length,
  }));
  process.exit(0);
}

main().catch((error) => { console.error(error); process.exit(1); });
