// Begins a run of its own and joins another one with one of Anchor's clients and the checked-in interfaces.
const { createRequire } = require("node:module");
const fs = require("node:fs");
const told = JSON.parse(fs.readFileSync(0, "utf8"));
const load = createRequire(told.modules);
const anchor = load(told.client);
const { Connection, Keypair, PublicKey, SystemProgram, LAMPORTS_PER_SOL } = load("@solana/web3.js");

const read = (path) => JSON.parse(fs.readFileSync(path, "utf8"));
const everybody = new PublicKey(Buffer.alloc(32));
const scope = Buffer.from("CoordinatorJoinRun");

async function main() {
  const connection = new Connection(told.http, "confirmed");
  const user = Keypair.generate(), p2p = Keypair.generate(), own = Keypair.generate();
  const latest = await connection.getLatestBlockhash();
  const airdrop = await connection.requestAirdrop(user.publicKey, 10 * LAMPORTS_PER_SOL);
  await connection.confirmTransaction({ signature: airdrop, ...latest });
  const provider = new anchor.AnchorProvider(connection, new anchor.Wallet(user), { commitment: "confirmed" });
  const coordinator = new anchor.Program(read(told.idl), provider);
  const authorizer = new anchor.Program(read(told.authorizer_idl), provider);
  const find = (seeds, program) => PublicKey.findProgramAddressSync(seeds, program.programId)[0];
  const findInstance = (name) => find([Buffer.from("coordinator"), Buffer.from(name)], coordinator);
  const findGrant = (grantor) => find([Buffer.from("Authorization"), grantor.toBuffer(), everybody.toBuffer(), scope], authorizer);

  // An own run, and leave for everybody to join it.
  const size = told.account_bytes;
  const create = SystemProgram.createAccount({
    fromPubkey: user.publicKey, newAccountPubkey: own.publicKey, space: size, programId: coordinator.programId,
    lamports: await connection.getMinimumBalanceForRentExemption(size),
  });
  await coordinator.methods
    .initCoordinator({ mainAuthority: user.publicKey, joinAuthority: user.publicKey, runId: "anchored", clientVersion: "" })
    .accounts({ payer: user.publicKey, coordinatorInstance: findInstance("anchored"), coordinatorAccount: own.publicKey, systemProgram: SystemProgram.programId })
    .preInstructions([create]).signers([own]).rpc();
  await authorizer.methods.authorizationCreate(everybody, scope)
    .accounts({ payer: user.publicKey, grantor: user.publicKey, authorization: findGrant(user.publicKey), systemProgram: SystemProgram.programId }).rpc();
  await authorizer.methods.authorizationGrantorUpdate(true)
    .accounts({ grantor: user.publicKey, authorization: findGrant(user.publicKey) }).rpc();
  const instance = await coordinator.account.coordinatorInstance.fetch(findInstance("anchored"));
  const grant = await authorizer.account.authorization.fetch(findGrant(user.publicKey));

  // The other run.
  const joined = [];
  const told_of = new Promise((resolve) => coordinator.addEventListener("joined", (event) => { joined.push(event); resolve(); }));
  await new Promise((resolve) => setTimeout(resolve, 300));
  const accounts = {
    user: user.publicKey, [told.p2p_name]: p2p.publicKey, authorization: findGrant(new PublicKey(told.grantor)),
    coordinatorInstance: findInstance(told.run_id), coordinatorAccount: new PublicKey(told.account),
  };
  await coordinator.methods.joinRun(new anchor.BN(0)).accounts(accounts).signers([p2p]).rpc();
  await told_of;
  const state = await coordinator.account.coordinatorAccount.fetch(accounts.coordinatorAccount);
  const slots = state.registry.slots.slice(0, state.registry.slotsLen);
  const constants = Object.fromEntries(coordinator.idl.constants.map((one) => [one.name, Number(one.value)]));
  let refused = null;
  try {
    await coordinator.methods.reclaimSlot().accounts(accounts).rpc();
  } catch (error) {
    refused = { code: error.error?.errorCode?.number ?? error.code, text: String(error.message).slice(0, 200) };
  }
  console.log(JSON.stringify({
    user: user.publicKey.toBase58(), p2p: p2p.publicKey.toBase58(), own: own.publicKey.toBase58(),
    instance: { run_id: instance.runId, account: instance.coordinatorAccount.toBase58() }, active: grant.active,
    events: joined.map((one) => one[told.p2p_name].toBase58()),
    keys: slots.map((slot) => new PublicKey(slot[told.p2p_name]).toBase58()),
    paused: constants.runStatePaused, joined: constants.slotStateJoined, states: slots.map((slot) => slot.state),
    signers: slots.map((slot) => new PublicKey(slot.signer).toBase58()), refused,
  }));
  process.exit(0);
}

main().catch((error) => { console.error(error); process.exit(1); });
