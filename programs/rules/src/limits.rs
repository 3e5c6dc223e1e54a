//! Every size and count of the rules, as `psyche.core.state.limits` explains them.

pub const MAX_CLIENTS: usize = 256;
pub const MAX_WITNESSES: usize = 32;
pub const STORED_ROUNDS: usize = 4;
pub const MAX_AUDITS: usize = 32;
pub const MAX_CHALLENGES: usize = 16;
pub const FALSE_CHALLENGE_LIMIT: u8 = 2;
pub const MAX_CLAIMS: usize = 64;
pub const MAX_START_CANDIDATES: usize = 4;
pub const MAX_BOOTSTRAP: usize = 4;
pub const MAX_COOLDOWN_SOURCES: u8 = 4;

pub const BLOOM_BITS: usize = 2_560;
pub const BLOOM_BYTES: usize = BLOOM_BITS / 8;
pub const BLOOM_HASHES: u32 = 7;
pub const BLOOM_BIT_CAP: u32 = 1_400;

pub const GOOD_STREAK_ROUNDS: u8 = 8;
pub const LONGEST_STRIKE_EPOCHS: u32 = 4;
pub const LONGEST_PROBATION_EPOCHS: u32 = 64;
pub const VOID_LIMIT_ROUNDS: u8 = 2;
pub const DIGEST_LIMIT_ROUNDS: u8 = 2;
pub const WITNESS_SILENCE_LIMIT: u8 = 2;
pub const WARMUP_FAILURE_LIMIT: u8 = 2;
pub const WARMUP_FAILURE_LIMIT_OLD_CHECKPOINT: u8 = 10;

pub const SHUFFLE_ROUNDS: u8 = 90;
pub const RUN_ID_BYTES: usize = 32;
pub const NAME_BYTES: usize = 64;
pub const DESCRIPTION_BYTES: usize = 280;
pub const CLIENT_VERSION_BYTES: usize = 96;
pub const STRING_BYTES: usize = 64;
pub const URL_BYTES: usize = 192;
pub const LOCAL_PATH_BYTES: usize = 128;
pub const BOOTSTRAP_BYTES: usize = 128;
pub const METADATA_BYTES: usize = 256;
pub const CHECKPOINT_BYTES: usize = 136;
pub const CONFIG_BYTES: usize = 128;
pub const MODEL_BYTES: usize = 960;
/// The model up to its spare checkpoints: what an owner sends in one transaction.
pub const MODEL_HEAD_BYTES: usize = MODEL_BYTES - 3 * CHECKPOINT_BYTES;
pub const RUN_METADATA_BYTES: usize = 360;
pub const PROGRESS_BYTES: usize = 16;
pub const DISCRIMINATOR_BYTES: usize = 8;
pub const STATE_BYTES: usize = 165_192;

pub const NO_UPLOADER: u16 = 65_535;
/// The target and the piece of a verifier that found nothing.
pub const NOBODY: u16 = 65_535;
/// The largest integer basis that the basis hash covers.
pub const MAX_CHUNK_EDGE: u16 = 128;
pub const MAX_INNER_STEPS: u16 = 2_048;
pub const MAX_VERIFICATION_PERCENT: u8 = 99;
pub const MAX_DATA_INDEX: u64 = (1 << 63) - 1;
pub const MAX_HEIGHT: u32 = u32::MAX - 1;
pub const MAX_EPOCH_ROUNDS: u32 = 1 << 31;
pub const MAX_TIME_S: u64 = u32::MAX as u64;
