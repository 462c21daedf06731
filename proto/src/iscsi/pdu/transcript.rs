//! PDUs of a login, as both sides remember them.

use super::{Pdu, padding};
use crate::iscsi::header::Lengths;
use crate::iscsi::sealed::Transcript;

impl Transcript {
    /// Adds a PDU of this side, as it is sent during a login.
    pub fn add_pdu(&mut self, pdu: &Pdu) {
        let Pdu { header, ahs, data } = pdu;
        self.add(&header.emit(Lengths { ahs: ahs.len(), data: data.len() }));
        self.add(ahs);
        self.add(data);
        self.add(&[0; 3][..padding(data.len())]);
    }
}
