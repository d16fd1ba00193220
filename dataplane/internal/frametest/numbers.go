package frametest

// EtherTypes, PPP protocols and IP protocols, from the registries of IANA and IEEE.
const (
	EtherIPv4    = 0x0800
	EtherVLAN    = 0x8100
	EtherIPv6    = 0x86dd
	EtherMPLS    = 0x8847
	EtherMPLSMC  = 0x8848
	EtherPPPoE   = 0x8864
	EtherQinQ    = 0x88a8
	EtherQinQOld = 0x9100

	PPPIPv4 = 0x0021
	PPPIPv6 = 0x0057

	ProtoTCP     = 6
	ProtoUDP     = 17
	ProtoDCCP    = 33
	ProtoSCTP    = 132
	ProtoUDPLite = 136
)
