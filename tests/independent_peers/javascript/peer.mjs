// A peer on js-libp2p, built from docs/peer-protocol.md alone: says hello, offers blobs and fetches as many of the same
// sizes. Reads one line of JSON; prints a line when it is connected, one when it has fetched; ends with its input.
import { createInterface } from "node:readline";
import { generateKeyPairFromSeed, publicKeyFromRaw } from "@libp2p/crypto/keys";
import { noise } from "@libp2p/noise";
import { peerIdFromPublicKey } from "@libp2p/peer-id";
import { tcp } from "@libp2p/tcp";
import { byteStream } from "@libp2p/utils";
import { yamux } from "@libp2p/yamux";
import { decode, encode } from "@msgpack/msgpack";
import { multiaddr } from "@multiformats/multiaddr";
import { blake3 } from "@noble/hashes/blake3.js";

// Node 20 lacks what js-libp2p asks for.
Promise.withResolvers ??= () => {
  const one = {};
  one.promise = new Promise((resolve, reject) => Object.assign(one, { resolve, reject }));
  return one;
};
const { createLibp2p } = await import("libp2p");

const MIB = 1 << 20;
const HELLO = "/psyche/hello/1", BLOB = "/psyche/blob/1";
const text = (words) => Buffer.from(words);
const u32 = (value) => { const b = Buffer.alloc(4); b.writeUInt32LE(value); return b; };
const u64 = (value) => { const b = Buffer.alloc(8); b.writeBigUInt64LE(BigInt(value)); return b; };
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));

const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const told = JSON.parse((await input.next()).value);
const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");

function hashChunks(data) {
  const hashes = [];
  for (let at = 0; at < data.length; at += MIB) hashes.push(blake3(data.subarray(at, at + MIB)));
  return Buffer.concat(hashes);
}
const getId = (size, hashes) => Buffer.from(blake3(Buffer.concat([text("psyche/blob/1"), u64(size), u32(MIB), hashes])));
const request = (kind, id, first, count) => Buffer.concat([text(kind), id, u32(first), u32(count)]);

const privateKey = await generateKeyPairFromSeed("Ed25519", bytes(told.seed));
const host = await createLibp2p({
  privateKey, transports: [tcp()], connectionEncrypters: [noise()], streamMuxers: [yamux()],
});

async function buildHello() { // it listens nowhere
  const expires = Math.floor(Date.now() / 1000) + 3600, key = privateKey.publicKey.raw;
  const signed = Buffer.concat([text("psyche/address/1"), key, u64(expires), Buffer.from([0])]);
  const record = [key, [], expires, Uint8Array.from(await privateKey.sign(signed))];
  return [1, bytes(told.run_uid), bytes(told.plan_hash), ["blob/1", "gossip/1", "sync/1"], record];
}

const writeFrame = (stream, what) => { const body = encode(what); return stream.write(Buffer.concat([u32(body.length), body])); };
async function readFrame(stream) {
  const size = Buffer.from((await stream.read({ bytes: 4 })).subarray()).readUInt32LE();
  if (size > 8192) throw new Error(`a frame of ${size} bytes`);
  return decode((await stream.read({ bytes: size })).subarray());
}

// blobs

const offered = new Map(told.sizes.map((size) => {
  const data = Buffer.alloc(size, `blob of ${size} `), hashes = hashChunks(data);
  return [getId(size, hashes).toString("hex"), { data, hashes }];
}));

async function serve(stream) {
  while (true) {
    const asked = Buffer.from((await stream.read({ bytes: 41 })).subarray());
    const blob = offered.get(asked.subarray(1, 33).toString("hex"));
    const first = asked.readUInt32LE(33), count = asked.readUInt32LE(37);
    const list = () => Buffer.concat([u64(blob.data.length), blob.hashes]);
    const body = asked[0] === 77 ? list() : blob.data.subarray(first * MIB, (first + count) * MIB);
    await stream.write(Buffer.concat([Buffer.from([0]), u64(body.length), body]));
  }
}

async function readReply(stream) {
  const head = Buffer.from((await stream.read({ bytes: 9 })).subarray());
  if (head[0] !== 0) throw new Error(`status ${head[0]}`);
  return Buffer.from((await stream.read({ bytes: Number(head.readBigUInt64LE(1)) })).subarray());
}

async function fetch(stream, id, size) {
  const count = Math.ceil(size / MIB);
  await stream.write(Buffer.concat([request("M", id, 0, 0), request("R", id, 0, count)]));
  const list = await readReply(stream), data = await readReply(stream);
  if (!getId(size, list.subarray(8)).equals(id)) throw new Error("the list does not give the id");
  if (!hashChunks(data).equals(list.subarray(8))) throw new Error("a chunk is wrong");
  return data.length;
}

await host.handle(BLOB, async (stream) => { try { await serve(byteStream(stream)); } catch { /* it ended */ } });

const peer = peerIdFromPublicKey(publicKeyFromRaw(bytes(told.node)));
const address = multiaddr(`${told.address}/p2p/${peer}`);
const hello = byteStream(await host.dialProtocol(address, HELLO));
await writeFrame(hello, await buildHello());
const [reason] = await readFrame(hello);
if (reason) throw new Error(reason);
await writeFrame(hello, [""]);
say({ offered: [...offered.keys()] });

const stream = byteStream(await host.dialProtocol(address, BLOB), { maxBufferSize: 8 * MIB });
const fetched = [];
for (const [id, size] of told.blobs) fetched.push(await fetch(stream, Buffer.from(id, "hex"), size));
say({ fetched, muxers: host.getConnections().map((one) => one.multiplexer) });
await input.next();
process.exit(0);
