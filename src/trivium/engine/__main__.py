from trivium.engine.host import main

main()
