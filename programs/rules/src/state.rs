//! The whole state of a run as it lies in the account, after the discriminator's 8 bytes.
//!
//! Names and meanings are those of `psyche.core.state.state`, offsets those of `psyche.core.encoding.tables`.
//! Booleans are bytes 0 or 1, floats and what depends on a kind are raw bytes, unused entries and pads are zero.
//! Any bytes are valid values of these types; which of them are a valid state is decided before they get here.

use crate::bits::Bitmap;
use crate::enums::{AuditReason, AuditStatus, ChallengeState, ClientState, RunState, SlotState, StopReason};
use crate::hash::Hash;
use crate::limits::*;

/// A field of a record: name, offset and size in bytes, and its type as written here.
pub type Field = (&'static str, usize, usize, &'static str);

/// Declares a record with the offset of every field, and checks offsets, size and the absence of hidden padding.
macro_rules! record {
    ($(#[$about:meta])* $name:ident $size:literal { $($(#[$note:meta])* $offset:literal $field:ident: $type:ty,)+ }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $($(#[$note])* pub $field: $type,)+ }

        impl $name {
            pub const FIELDS: &'static [Field] =
                &[$((
                    stringify!($field),
                    core::mem::offset_of!($name, $field),
                    core::mem::size_of::<$type>(),
                    stringify!($type),
                ),)+];
            /// The record of zero bytes.
            // SAFETY: any bytes are a valid value of every field.
            pub const ZERO: $name = unsafe { core::mem::zeroed() };

            /// The record that these bytes are, wherever they lie.
            pub fn read(bytes: &[u8; $size]) -> $name {
                // SAFETY: any bytes are a valid value of every field.
                unsafe { bytes.as_ptr().cast::<$name>().read_unaligned() }
            }

            /// The record's bytes.
            pub fn as_bytes(&self) -> &[u8; $size] {
                // SAFETY: the record has no padding, so all its bytes are set.
                unsafe { &*core::ptr::from_ref(self).cast() }
            }
        }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            assert!(0 $(+ core::mem::size_of::<$type>())+ == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)+
        };

        // SAFETY: the record has no padding, and any bytes are a valid value of every field.
        #[cfg(feature = "bytemuck")]
        unsafe impl bytemuck::Zeroable for $name {}
        #[cfg(feature = "bytemuck")]
        unsafe impl bytemuck::Pod for $name {}
    };
}

record! {
    /// Descriptive data of a run, for people.
    Metadata 360 {
        0 name: [u8; NAME_BYTES],
        64 description: [u8; DESCRIPTION_BYTES],
        344 num_parameters: u64,
        352 vocab_size: u64,
    }
}

record! {
    /// The model, its data, learning-rate schedule and optimizer; `validate` reads what is bytes here.
    Model 960 {
        0 kind: u32,
        4 cooldown_sources: u8,
        5 _pad: [u8; 3],
        8 max_seq_len: u32,
        12 cold_start_warmup_steps: u32,
        16 architecture: u32,
        20 checkpoint: [u8; CHECKPOINT_BYTES],
        156 data_type: u32,
        160 data_location: [u8; 304],
        464 lr_schedule: [u8; 56],
        520 optimizer: [u8; 32],
        552 extra_checkpoints: [[u8; CHECKPOINT_BYTES]; 3],
    }
}

record! {
    /// The settings that the coordinator itself uses; times are in seconds.
    Config 128 {
        0 warmup_time: u64,
        8 cooldown_time: u64,
        16 max_round_train_time: u64,
        24 round_witness_time: u64,
        32 global_batch_size_warmup_tokens: u64,
        40 epoch_time: u64,
        48 total_steps: u32,
        52 init_min_clients: u16,
        54 min_clients: u16,
        56 witness_nodes: u16,
        58 global_batch_size_start: u16,
        60 global_batch_size_end: u16,
        62 verification_percent: u8,
        63 waiting_for_members_extra_time: u8,
        64 rounds_per_epoch: u32,
        68 straggler_percent: u16,
        70 overlap: u8,
        71 entropy_delay: u8,
        72 evict_after: u8,
        73 late_limit: u8,
        74 convict: u8,
        75 reveal_gate: u8,
        76 tolerance_fp32_ppm: u32,
        80 tolerance_bf16_ppm: u32,
        84 opened_chunks: u16,
        86 canary_permille: u16,
        88 min_stake: u64,
        96 data_root: Hash,
    }
}

record! {
    /// The progress of the run: the epoch's number (from 0), the step (from 1), and the epoch's first sample.
    Progress 16 {
        0 epoch: u16,
        2 _pad: [u8; 2],
        4 step: u32,
        8 epoch_start_data_index: u64,
    }
}

record! {
    /// Recorded weights and the progress they belong to: `certified` and `checkpoint` (P3, S10).
    Mark 48 {
        0 digest: Hash,
        32 epoch: u16,
        34 uploader: u16,
        36 step: u32,
        40 data_index: u64,
    }
}

record! {
    /// A digest shown in the first Warmup, and how many members show it (S8).
    StartCandidate 40 {
        0 digest: Hash,
        32 count: u16,
        34 _pad: [u8; 6],
    }
}

record! {
    /// The epoch's header; its members and rounds are in `State`.
    Epoch 256 {
        0 rounds_head: u32,
        4 start_step: u32,
        /// 0: not draining.
        8 drain_from_height: u32,
        12 clients_len: u16,
        14 ready_len: u16,
        16 start_timestamp: u64,
        24 ready_quorum_unix: u64,
        32 void_streak: u8,
        33 digest_streak: u8,
        34 warmup_failures: u8,
        35 first_round: u8,
        36 cold_start: u8,
        37 stop_reason: StopReason,
        38 _pad: [u8; 2],
        /// The first entry of zero bytes ends the list.
        40 start_candidates: [StartCandidate; MAX_START_CANDIDATES],
        200 credit_total: u64,
        /// Sources accepted in this Cooldown (P10).
        208 checkpoint_sources: u8,
        209 _reserve: [u8; 47],
    }
}

record! {
    /// One witness's report as recorded (W1 to W5).
    WitnessRecord 512 {
        0 member: u16,
        2 flags: u8,
        3 _pad: u8,
        4 at_s: u32,
        8 held: Bitmap,
        40 heard: Bitmap,
        72 missing: Bitmap,
        104 broadcast_bloom: [u8; BLOOM_BYTES],
        424 results_root: Hash,
        456 state_digest: Hash,
        488 _reserve: [u8; 24],
    }
}

record! {
    /// What one verifier found (V9).
    Audit 64 {
        0 verifier: u16,
        2 target: u16,
        4 status: AuditStatus,
        5 reason: AuditReason,
        6 piece: u16,
        8 commit: Hash,
        40 _reserve: [u8; 24],
    }
}

record! {
    /// One round of the ring.
    Round 18_752 {
        0 seed: Hash,
        32 members: Bitmap,
        64 agreed_held: Bitmap,
        96 agreed_root: Hash,
        128 agreed_digest: Hash,
        160 mix: Hash,
        192 random_seed: u64,
        200 data_index: u64,
        208 started_unix: u64,
        216 entropy_slot: u64,
        224 height: u32,
        228 step: u32,
        232 batch_size: u16,
        234 clients_len: u16,
        236 witnesses_expected: u16,
        238 quorum: u16,
        240 witnesses_len: u16,
        242 complete_len: u16,
        244 audits_len: u16,
        246 tie_breaker_tasks: u16,
        248 flags: u8,
        249 _pad: [u8; 7],
        256 voided: Bitmap,
        /// The members that may be elected witnesses (M10).
        288 electors: Bitmap,
        320 witnesses: [WitnessRecord; MAX_WITNESSES],
        16_704 audits: [Audit; MAX_AUDITS],
    }
}

record! {
    /// A member of the epoch; its index never changes within the epoch.
    Client 128 {
        0 signer: Hash,
        32 p2p: Hash,
        64 state: ClientState,
        65 missed: u8,
        66 late: u8,
        67 witness_missed: u8,
        68 flags: u8,
        69 share: u8,
        70 slot: u16,
        72 joined_height: u32,
        76 exited_height: u32,
        80 credits: u32,
        84 witness_credits: u16,
        86 audits_passed: u16,
        88 audits_failed: u8,
        89 false_challenges: u8,
        90 numeric_class: u8,
        91 good_streak: u8,
        92 witness_checked_height: u32,
        96 _reserve: [u8; 32],
    }
}

record! {
    /// An entry of the table of challenges (V12). `verifier` and `target` are slots: members change with the epoch.
    Challenge 128 {
        0 target_commitment: Hash,
        32 evidence: Hash,
        64 height: u32,
        68 opened_height: u32,
        72 deadline_height: u32,
        76 verifier: u16,
        78 target: u16,
        80 state: ChallengeState,
        81 reason: AuditReason,
        82 guilty: u8,
        83 innocent: u8,
        84 epoch: u16,
        86 piece: u16,
        88 voters: Bitmap,
        120 _reserve: [u8; 8],
    }
}

record! {
    /// An entry of the registry: one signer.
    Slot 192 {
        0 signer: Hash,
        32 p2p: Hash,
        64 earned: u64,
        72 slashed: u64,
        80 stake: u64,
        88 joined_unix: u64,
        96 expires_unix: u64,
        104 _pad: [u8; 8],
        112 active: u16,
        114 last_epoch: u16,
        116 state: SlotState,
        117 strikes: u8,
        118 until: u16,
        120 anchor: Hash,
        /// It has had a credit (M10).
        152 proven: u8,
        /// Fruitless epochs in a row (M10).
        153 fruitless: u8,
        /// Accusations of which a jury cleared the accused (V12).
        154 false_challenges: u8,
        155 _reserve: [u8; 37],
    }
}

record! {
    /// The slots of all participants, in order of first joining, and the rates that they earn.
    Registry 49_216 {
        0 slots_len: u16,
        2 next_active: u16,
        4 _pad: [u8; 4],
        8 current_earning_rate: u64,
        16 current_slashing_rate: u64,
        24 future_earning_rate: u64,
        32 future_slashing_rate: u64,
        40 carry: u64,
        48 _reserve: [u8; 16],
        64 slots: [Slot; MAX_CLIENTS],
    }
}

record! {
    /// The state of a run. `apply` changes it.
    State 165_184 {
        0 version: u64,
        8 metadata: Metadata,
        368 client_version: [u8; CLIENT_VERSION_BYTES],
        464 run_id: [u8; RUN_ID_BYTES],
        496 run_uid: Hash,
        528 run_state: RunState,
        529 _pad: [u8; 7],
        536 state_start_unix: u64,
        544 pending_pause: u8,
        545 _pad_pause: [u8; 7],
        552 model: Model,
        1_512 config: Config,
        1_640 progress: Progress,
        1_656 last_seed: Hash,
        1_688 certified: Mark,
        1_736 checkpoint: Mark,
        1_784 epoch: Epoch,
        2_040 rounds: [Round; STORED_ROUNDS],
        77_048 clients: [Client; MAX_CLIENTS],
        109_816 challenges: [Challenge; MAX_CHALLENGES],
        111_864 registry: Registry,
        161_080 nonce: u64,
        161_088 bootstrap: [[u8; BOOTSTRAP_BYTES]; MAX_BOOTSTRAP],
        161_600 _reserve: [u8; 3_584],
    }
}

const _: () = assert!(core::mem::size_of::<State>() + DISCRIMINATOR_BYTES == STATE_BYTES);

/// Every record with its size and fields; offsets in `State` are those in the account less the discriminator's 8.
pub const RECORDS: &[(&str, usize, &[Field])] = &[
    ("Metadata", core::mem::size_of::<Metadata>(), Metadata::FIELDS),
    ("Model", core::mem::size_of::<Model>(), Model::FIELDS),
    ("Config", core::mem::size_of::<Config>(), Config::FIELDS),
    ("Progress", core::mem::size_of::<Progress>(), Progress::FIELDS),
    ("Mark", core::mem::size_of::<Mark>(), Mark::FIELDS),
    ("StartCandidate", core::mem::size_of::<StartCandidate>(), StartCandidate::FIELDS),
    ("Epoch", core::mem::size_of::<Epoch>(), Epoch::FIELDS),
    ("WitnessRecord", core::mem::size_of::<WitnessRecord>(), WitnessRecord::FIELDS),
    ("Audit", core::mem::size_of::<Audit>(), Audit::FIELDS),
    ("Round", core::mem::size_of::<Round>(), Round::FIELDS),
    ("Client", core::mem::size_of::<Client>(), Client::FIELDS),
    ("Challenge", core::mem::size_of::<Challenge>(), Challenge::FIELDS),
    ("Slot", core::mem::size_of::<Slot>(), Slot::FIELDS),
    ("Registry", core::mem::size_of::<Registry>(), Registry::FIELDS),
    ("State", core::mem::size_of::<State>(), State::FIELDS),
];

impl Mark {
    /// The mark of a run without certified weights.
    pub const UNSET: Mark = Mark { uploader: NO_UPLOADER, ..Mark::ZERO };
}

impl Epoch {
    /// The number of start candidates: the place of the first entry of zero bytes.
    pub fn start_candidates_len(&self) -> usize {
        let is_empty = |c: &StartCandidate| c.count == 0 && crate::hash::is_zero(&c.digest);
        self.start_candidates.iter().position(is_empty).unwrap_or(MAX_START_CANDIDATES)
    }
}

impl Round {
    /// The recorded reports.
    pub fn witnesses(&self) -> &[WitnessRecord] {
        &self.witnesses[..self.witnesses_len as usize]
    }

    /// What verifiers have found.
    pub fn audits(&self) -> &[Audit] {
        &self.audits[..self.audits_len as usize]
    }
}

impl State {
    /// The state in an account's bytes, discriminator included; None if their number or alignment is wrong.
    pub fn at(account: &mut [u8]) -> Option<&mut State> {
        let state = account.get_mut(DISCRIMINATOR_BYTES..)?;
        let is_state = state.len() == core::mem::size_of::<State>()
            && state.as_ptr() as usize % core::mem::align_of::<State>() == 0;
        // SAFETY: size and alignment are checked, any bytes are a valid state, and the borrow is exclusive.
        is_state.then(|| unsafe { &mut *state.as_mut_ptr().cast::<State>() })
    }

    /// The place of the newest round in the ring.
    pub fn current_index(&self) -> usize {
        self.epoch.rounds_head as usize % STORED_ROUNDS
    }

    /// The newest round, at the head of the ring.
    pub fn current(&self) -> &Round {
        &self.rounds[self.current_index()]
    }

    /// The newest round, to be changed.
    pub fn current_mut(&mut self) -> &mut Round {
        &mut self.rounds[self.current_index()]
    }

    /// The members of the epoch.
    pub fn clients(&self) -> &[Client] {
        &self.clients[..self.epoch.clients_len as usize]
    }

    /// The registry's slots that are or were taken.
    pub fn slots(&self) -> &[Slot] {
        &self.registry.slots[..self.registry.slots_len as usize]
    }

    /// The registry's slots that are or were taken, to be changed.
    pub fn slots_mut(&mut self) -> &mut [Slot] {
        &mut self.registry.slots[..self.registry.slots_len as usize]
    }

    /// Whether the run is uninitialized, finished or paused: only the owner can move it on.
    pub fn halted(&self) -> bool {
        matches!(self.run_state, RunState::UNINITIALIZED | RunState::FINISHED | RunState::PAUSED)
    }

    /// Whether a round is open for witness messages.
    pub fn in_round(&self) -> bool {
        matches!(self.run_state, RunState::ROUND_TRAIN | RunState::ROUND_WITNESS)
    }
}
