//! The enumerations and flags of the state; their values are part of the layout.
//!
//! An enumeration is a byte with named values: an account's bytes are a valid state whatever they are.

macro_rules! enumeration {
    ($(#[$about:meta])* $name:ident { $($value:ident = $number:literal,)+ }) => {
        $(#[$about])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub u8);

        impl $name {
            $(pub const $value: $name = $name($number);)+
            /// All of them by name.
            pub const VALUES: &'static [(&'static str, u8)] = &[$((stringify!($value), $number),)+];
        }
    };
}

enumeration! {
    /// Phases of a run.
    RunState {
        UNINITIALIZED = 0,
        WAITING_FOR_MEMBERS = 1,
        WARMUP = 2,
        ROUND_TRAIN = 3,
        ROUND_WITNESS = 4,
        COOLDOWN = 5,
        FINISHED = 6,
        PAUSED = 7,
    }
}

enumeration! {
    /// The state of a member of the epoch.
    ClientState {
        HEALTHY = 0,
        DROPPED = 1,
        WITHDRAWN = 2,
        EJECTED = 3,
    }
}

enumeration! {
    /// The state of a slot of the registry.
    SlotState {
        FREE = 0,
        JOINED = 1,
        LEAVING = 2,
        BANNED = 3,
        LEFT = 4,
    }
}

enumeration! {
    /// What became of a verifier's audits (V9).
    AuditStatus {
        PASSED = 0,
        DOUBTED = 1,
        CHALLENGED = 2,
    }
}

enumeration! {
    /// Why a verifier names a member (V10, V11).
    AuditReason {
        NONE = 0,
        UNCLEAR = 1,
        GRADIENT = 2,
        REPEATED = 3,
        SIGNS = 4,
        WITHHELD = 5,
        PATHS = 6,
        MOMENTUM = 7,
        SELECTION = 8,
        LINK = 9,
    }
}

enumeration! {
    /// The state of an entry of the table of challenges (V12).
    ChallengeState {
        FREE = 0,
        OPEN = 1,
        UNDECIDED = 2,
    }
}

enumeration! {
    /// Why an epoch ends (P1).
    StopReason {
        NONE = 0,
        EPOCH_LENGTH = 1,
        TOTAL_STEPS = 2,
        PAUSE = 3,
        MIN_CLIENTS = 4,
        MASS_DROP = 5,
        NO_DIGEST = 6,
        VOID = 7,
    }
}

/// Flags of a member.
pub mod client_flag {
    pub const READY: u8 = 1;
    pub const DIVERGED: u8 = 2;
    pub const NEWCOMER: u8 = 4;
    pub const PROBATION: u8 = 8;
    pub const CANDIDATE_LOW: u8 = 16;
    pub const CANDIDATE_HIGH: u8 = 32;
}

/// Flags of a witness record.
pub mod witness_flag {
    pub const COMPLETE: u8 = 1;
    pub const FULL_DIGEST: u8 = 2;
    pub const NO_DIGEST: u8 = 4;
}

/// Flags of a round.
pub mod round_flag {
    pub const DRAIN: u8 = 1;
    pub const ROOT: u8 = 2;
    pub const DIGEST: u8 = 4;
    pub const FULL: u8 = 8;
    pub const VOID: u8 = 16;
    pub const CLOSED: u8 = 32;
    pub const BY_TIMEOUT: u8 = 64;
}

/// Where a model's weights come from.
pub mod checkpoint_kind {
    pub const EPHEMERAL: u32 = 0;
    pub const DUMMY: u32 = 1;
    pub const HUB: u32 = 2;
    pub const P2P: u32 = 3;
    pub const GCS: u32 = 4;
    pub const P2P_GCS: u32 = 5;
    pub const LOCAL: u32 = 6;
}
