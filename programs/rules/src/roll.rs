//! Who takes part in the running epoch (H2, M10).

use crate::bits::Bitmap;
use crate::enums::{client_flag, ClientState};
use crate::state::Client;

/// The Healthy members and those on probation. Core counts them again wherever it asks; here one scan of the members
/// serves a whole message, and whoever changes a member changes the roll with it.
pub struct Roll {
    pub healthy: Bitmap,
    pub on_probation: Bitmap,
}

impl Roll {
    pub fn count(clients: &[Client]) -> Roll {
        Roll {
            healthy: Bitmap::collect(clients, |client| client.state == ClientState::HEALTHY),
            on_probation: Bitmap::collect(clients, |client| client.flags & client_flag::PROBATION != 0),
        }
    }

    /// The Healthy members that are not on probation; if all are, all Healthy members (M10).
    pub fn electors(&self) -> Bitmap {
        let proven = self.healthy.without(self.on_probation);
        if proven.is_empty() {
            self.healthy
        } else {
            proven
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::build_state;

    #[test]
    fn the_roll_lists_members_by_their_state_and_flags() {
        let mut state = build_state();
        state.epoch.clients_len = 200;
        for (member, client) in state.clients.iter_mut().enumerate() {
            client.state = ClientState((member % 4) as u8);
            client.flags =
                if member % 3 == 0 { client_flag::PROBATION | client_flag::READY } else { client_flag::READY };
        }
        let roll = Roll::count(state.clients());
        for member in 0..256 {
            assert_eq!(roll.healthy.get(member), member < 200 && member % 4 == 0);
            assert_eq!(roll.on_probation.get(member), member < 200 && member % 3 == 0);
        }
        assert_eq!(roll.electors(), roll.healthy.without(roll.on_probation));
    }

    #[test]
    fn all_healthy_members_elect_where_all_are_on_probation() {
        let roll = Roll { healthy: Bitmap::below(5), on_probation: Bitmap::below(9) };
        assert_eq!(roll.electors(), Bitmap::below(5));
    }
}
